/** Where the words of a constraint stand in a message. */

/** Text as the service counts its characters: no NUL, no lone surrogates, NFC, one kind of newline. */
export function clean(text) {
  return text.replace(/\r\n?/g, "\n").replaceAll("\0", "").toWellFormed().normalize("NFC");
}

/** The UTF-16 offset, as JavaScript counts, of the code point at offset `point`, as Python counts. */
export function utf16(text, point) {
  return [...text].slice(0, point).join("").length;
}

/**
 * `text` cut where a mark begins or ends: [{text, sides}], `sides` the names of the marks that cover the piece.
 * A mark is {side, start, end} in code points.
 */
export function pieces(text, marks) {
  const units = marks.map(({ side, start, end }) => ({ side, start: utf16(text, start), end: utf16(text, end) }));
  const cuts = [...new Set([0, text.length, ...units.flatMap(({ start, end }) => [start, end])])].sort((a, b) => a - b);
  return cuts.slice(1).map((end, index) => ({
    text: text.slice(cuts[index], end),
    sides: units.filter((mark) => mark.start <= cuts[index] && end <= mark.end).map((mark) => mark.side),
  }));
}
