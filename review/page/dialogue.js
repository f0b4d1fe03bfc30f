/** A dialogue as it is read: beginning and end, the middle on demand. */

import { html } from "./shared/html.js";

const FIRST = 1; // turns that are always shown at the beginning
const LAST = 2; // and at the end
const LONG = 1500; // characters of a message beyond which its middle is folded
const KEPT = 500; // characters of its beginning and of its end that are shown

/** The turns of an item. `unfolded` holds "middle" and the ids of messages that are shown in full. */
export function dialogue({ system, turns }, unfolded, actions, t) {
  const folded = turns.length > FIRST + LAST + 1 && !unfolded.has("middle");
  const hidden = folded ? turns.slice(FIRST, -LAST).length : 0;
  const shown = (turn, index) => turnOf(turn, index, unfolded, actions, t);
  return html`
    <section class="dialogue" aria-label=${t("dialogue")}>
      ${system && message("system", t("system"), system, "s", unfolded, actions, t)}
      ${folded
        ? html`
            ${turns.slice(0, FIRST).map(shown)}
            <button type="button" class="fold" id="unfold" onClick=${() => actions.toggle("middle")}>
              ${t("unfold", { turns: hidden })} <kbd>f</kbd>
            </button>
            ${turns.slice(-LAST).map((turn, index) => shown(turn, turns.length - LAST + index))}
          `
        : turns.map(shown)}
    </section>
  `;
}

function turnOf({ user, assistant }, index, unfolded, actions, t) {
  return html`
    <div class="turn" key=${index}>
      ${message("user", t("user"), user, `u${index}`, unfolded, actions, t)}
      ${message("assistant", t("assistant"), assistant, `a${index}`, unfolded, actions, t)}
    </div>
  `;
}

function message(role, title, text, id, unfolded, actions, t) {
  const long = text.length > LONG;
  const folded = long && !unfolded.has(id);
  return html`
    <div class=${`message ${role}`}>
      <h3>${title}</h3>
      ${folded
        ? html`
            <div class="text" dir="auto">${text.slice(0, KEPT)}…</div>
            <button type="button" class="link" onClick=${() => actions.toggle(id)}>
              ${t("more", { characters: text.length - 2 * KEPT })}
            </button>
            <div class="text" dir="auto">…${text.slice(-KEPT)}</div>
          `
        : html`<div class="text" dir="auto">${text}</div>`}
      ${long && !folded && html`<button type="button" class="link" onClick=${() => actions.toggle(id)}>${t("less")}</button>`}
    </div>
  `;
}

/** The follow-up, set apart from the dialogue. */
export function followUp(text, title, unfolded, actions, t) {
  return html`<section class="follow">${message("last", title, text, "last", unfolded, actions, t)}</section>`;
}
