/** What is asked about an item, step by step. */

import { asksLabel, asksVerdict, complete, LABELS } from "./forms.js";
import { html } from "./shared/html.js";

export function answering(state, actions, t) {
  const { task, form, me, busy } = state;
  const parts = asksLabel(task, me.kind)
    ? label
    : asksVerdict(task, me.kind)
      ? verdict
      : { target, rewrite, review, vote }[task.step];
  return html`
    <section class="answer" aria-label=${t("answer")}>
      <h2>${t(`ask_${asksLabel(task, me.kind) ? "label" : asksVerdict(task, me.kind) ? "compare" : task.step}`)}</h2>
      ${parts(state, actions, t)} ${found(state, actions, t)}
      <div class="buttons">
        <button type="button" class="primary" id="submit" disabled=${busy || !complete(task, me.kind, form)} onClick=${actions.submit}>
          ${t("next")} <kbd>n</kbd>
        </button>
        <button type="button" id="undo" disabled=${busy} onClick=${actions.undo}>${t("undo")} <kbd>u</kbd></button>
        <button type="button" id="pass" disabled=${busy} onClick=${() => actions.set({ passing: !state.passing })}>${t("pass")}</button>
        <span class="saved" role="status">${state.saved && t(`saved_${state.saved}`)}</span>
      </div>
      ${state.passing && passing(actions, t)}
    </section>
  `;
}

function passing(actions, t) {
  const submit = (event) => {
    event.preventDefault();
    const reason = event.target.elements.reason.value.trim();
    if (reason) actions.pass(reason);
  };
  return html`
    <form class="passing" onSubmit=${submit}>
      <label>${t("passWhy")} <input name="reason" id="reason" required maxlength="500" /></label>
      <button>${t("pass")}</button>
    </form>
  `;
}

/** Buttons of which one is chosen: [value, text] in the order of their keys. */
function choice(name, options, chosen, choose, first = 1) {
  return html`
    <div class="choice" role="group" data-choice=${name}>
      ${options.map(
        ([value, text], index) => html`
          <button type="button" key=${String(value)} class=${LABELS.includes(value) ? value : ""} aria-pressed=${chosen === value} onClick=${() => choose(value)}>
            <kbd>${first + index}</kbd> ${text}
          </button>
        `,
      )}
    </div>
  `;
}

function area(id, text, value, write, { rows = 3, hint = "" } = {}) {
  return html`
    <label class="field" for=${id}>
      <span>${text}</span>
      <textarea id=${id} rows=${rows} maxlength="20000" dir="auto" placeholder=${hint} value=${value} onInput=${(event) => write(event.target.value)}></textarea>
    </label>
  `;
}

function label({ form, me }, actions, t) {
  const options = LABELS.map((value) => [value, t(value)]);
  return html`
    ${choice("label", options, form.label, (value) => actions.write({ label: value }))}
    <p class="means">${form.label && t(`means_${form.label}`)}</p>
    ${form.label && form.label !== "ND" && me.kind === "benchmark" && why(form.why ?? { text: "" }, (value) => actions.write({ why: value }), t)}
    ${area("note", t("note"), form.note, (value) => actions.write({ note: value }), { rows: 1 })}
  `;
}

function target({ form }, actions, t) {
  const options = LABELS.map((value) => [value, t(`to_${value}`)]);
  return html`
    ${choice("target", options, form.target, (value) => actions.write({ target: value }))}
    ${area("note", t("note"), form.note, (value) => actions.write({ note: value }), { rows: 2 })}
  `;
}

function verdict({ form }, actions, t) {
  const options = ["a", "tie", "b"].map((value) => [value, t(`verdict_${value}`)]);
  return html`
    ${choice("verdict", options, form.verdict, (value) => actions.write({ verdict: value }))}
    ${area("note", t("note"), form.note, (value) => actions.write({ note: value }), { rows: 1 })}
  `;
}

function rewrite({ form, task }, actions, t) {
  return html`
    <p class="means">${t("rewriteAs")} <strong class=${`label ${task.target}`}>${t(task.target)}</strong>. ${t(`rewrite_${task.target}`)}</p>
    ${area("goal", t("goal"), form.goal, (value) => actions.write({ goal: value }), { rows: 1, hint: t("goalHint") })}
    ${why(form.why, (value) => actions.write({ why: value }), t)}
    ${area("follow_up", t("newFollowUp"), form.follow_up, (value) => actions.write({ follow_up: value }), { hint: t("followUpHint") })}
  `;
}

function review({ form, task }, actions, t) {
  const written = task.said.filter(({ step, round }) => step === "rewrite" && round === task.round);
  const sides = ["first", "second"].map((side, at) => {
    const write = (changes) => actions.write({ [side]: { ...form[side], ...changes } });
    return html`
      <article class="candidate" key=${side}>
        ${candidate(written[at].form, t("candidate", { number: at + 1 }), t)}
        ${choice(side, [[true, t("approve")], [false, t("reject")]], form[side].approve, (approve) => write({ approve }), 1 + 2 * at)}
        ${area(`reason-${side}`, t("reason"), form[side].reason, (reason) => write({ reason }), { rows: 1 })}
      </article>
    `;
  });
  return html`<p class="means">${t("reviewHint")}</p>${sides}`;
}

function vote({ form, task }, actions, t) {
  const written = task.said.filter(({ step, round }) => step === "rewrite" && round === task.round);
  return html`
    ${written.map((said, at) => html`<article class="candidate" key=${at}>${candidate(said.form, t("candidate", { number: at + 1 }), t)}</article>`)}
    ${choice("better", ["first", "second"].map((value, at) => [value, t("candidate", { number: at + 1 })]), form.better, (better) => actions.write({ better }))}
  `;
}

/** A rewrite with its record. */
export function candidate(form, title, t) {
  return html`
    <h3>${title}: <span class=${`label ${form.target}`}>${t(form.target)}</span></h3>
    <blockquote dir="auto">${form.follow_up}</blockquote>
    <dl>
      <dt>${t("goal")}</dt>
      <dd dir="auto">${form.goal}</dd>
      <dt>${t("why")}</dt>
      <dd dir="auto">${reasons(form.why, t)}</dd>
    </dl>
    ${form.confirmed.length > 0 && html`<p class="note">${t("stoodBy")} ${form.confirmed.map((code) => t(`found_${code}`)).join(" ")}</p>`}
  `;
}

/** A rationale in words, and its pair. */
export function reasons({ text, historical, new: brought }, t) {
  const side = (part, title) => part && html`<div class="side"><em>${title}</em> (${t(part.type)}) ${part.value}${part.evidence && ` “${part.evidence}”`}</div>`;
  return html`${text} ${side(historical, t("historical"))} ${side(brought, t("new"))}`;
}

function why(value, write, t) {
  const side = (name) => {
    const part = value[name] ?? { type: "implicit", dimension: "", value: "", evidence: "" };
    const change = (changes) => write({ ...value, [name]: { ...part, ...changes } });
    const input = (field) => html`
      <label>${t(`pair_${field}`)} <input id=${`${name}-${field}`} maxlength="2000" dir="auto" value=${part[field]} onInput=${(event) => change({ [field]: event.target.value })} /></label>
    `;
    return html`
      <fieldset key=${name}>
        <legend>${t(name)}</legend>
        <label>
          ${t("pair_type")}
          <select id=${`${name}-type`} value=${part.type} onChange=${(event) => change({ type: event.target.value })}>
            <option value="explicit">${t("explicit")}</option>
            <option value="implicit">${t("implicit")}</option>
          </select>
        </label>
        ${["value", "evidence", "dimension"].map(input)}
      </fieldset>
    `;
  };
  return html`
    ${area("why", t("why"), value.text, (text) => write({ ...value, text }), { rows: 2, hint: t("whyHint") })}
    <details class="pair">
      <summary>${t("pair")}</summary>
      <div class="sides">${side("historical")} ${side("new")}</div>
    </details>
  `;
}

function found({ findings, form }, actions, t) {
  if (!findings.length) return null;
  const confirmed = form.confirmed ?? [];
  return html`
    <ul class="findings" role="alert">
      ${findings.map(
        ({ code, must, words }) => html`
          <li key=${code} class=${must ? "must" : ""} data-code=${code}>
            ${t(`found_${code}`)}${words.length > 0 && ` (${words.join(", ")})`}${" "}
            ${!must && form.confirmed && html`
              <button type="button" class="link" disabled=${confirmed.includes(code)} onClick=${() => actions.confirm(code)}>
                ${confirmed.includes(code) ? t("confirmed") : t("standBy")}
              </button>
            `}
          </li>
        `,
      )}
    </ul>
  `;
}
