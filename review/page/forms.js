/** What a person fills in at each step: the empty form, what a key sets, and what is sent. */

export const LABELS = ["ND", "ER", "IC"];
export const STEPS = ["label", "compare", "adjudicate", "target", "rewrite", "review", "vote", "done", "excluded"];

/** Whether a task asks for a label: at step "label", and where a third settles one. */
export const asksLabel = (task, kind) => task.step === "label" || (task.step === "adjudicate" && kind !== "pairwise");
export const asksVerdict = (task, kind) => task.step === "compare" || (task.step === "adjudicate" && kind === "pairwise");

/** A form with nothing filled in, or with what a draft holds. */
export function begin(task, kind) {
  const empty = {
    target: { target: null, note: "" },
    rewrite: { goal: "", target: task.target, why: { text: "" }, follow_up: "", history: task.item.history, confirmed: [] },
    review: { first: { approve: null, reason: "" }, second: { approve: null, reason: "" } },
    vote: { better: null },
  };
  const form =
    empty[task.step] ?? (asksVerdict(task, kind) ? { verdict: null, note: "" } : { label: null, why: null, note: "" });
  return { ...form, ...task.draft };
}

/** The change that a digit makes, or null. */
export function keyed(task, kind, digit, form) {
  const at = digit - 1;
  if (asksLabel(task, kind)) return at < 3 ? { label: LABELS[at] } : null;
  if (asksVerdict(task, kind)) return at < 3 ? { verdict: ["a", "tie", "b"][at] } : null;
  if (task.step === "target") return at < 3 ? { target: LABELS[at] } : null;
  if (task.step === "vote") return at < 2 ? { better: ["first", "second"][at] } : null;
  if (task.step === "review" && at < 4) {
    const side = at < 2 ? "first" : "second";
    return { [side]: { ...form[side], approve: at % 2 === 0 } };
  }
  return null;
}

/** Whether everything is chosen that has to be; texts are the service's to check. */
export function complete(task, kind, form) {
  if (asksLabel(task, kind)) return form.label !== null;
  if (asksVerdict(task, kind)) return form.verdict !== null;
  if (task.step === "target") return form.target !== null;
  if (task.step === "vote") return form.better !== null;
  if (task.step === "review") return form.first.approve !== null && form.second.approve !== null;
  return true;
}

/** The form as it is answered: without reasons for what needs none, and without a pair that says nothing. */
export function answered(task, kind, form) {
  if (asksLabel(task, kind)) {
    const why = form.label === "ND" || !said(form.why) ? null : paired(form.why);
    return { ...form, why };
  }
  return task.step === "rewrite" ? { ...form, why: paired(form.why) } : form;
}

const said = (why) => why && (why.text.trim() || why.historical?.value || why.new?.value);

function paired({ text, historical, new: brought }) {
  const side = (part) => (part?.value?.trim() ? { ...part, dimension: part.dimension?.trim() || "requirement" } : null);
  return { text, historical: side(historical), new: side(brought) };
}
