/** The verdict on a message: its label, the pair that clashes, and the requirements that are still valid. */

import { html } from "./shared/html.js";

/** The label is never told by its colour alone. */
const SIGNS = { ND: "✓", ER: "↻", IC: "≠", undetermined: "?" };
const LABELS = ["ND", "ER", "IC"];

const percent = (share, language) =>
  new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 }).format(share);

/** The verdict in brief, under its message; a click shows it in full. */
export function chip(entry, pressed, actions, t, language) {
  const { label, probabilities } = entry.detection;
  return html`
    <button type="button" class=${`chip ${label}`} id=${`chip-${entry.id}`} aria-pressed=${pressed}
      onClick=${() => actions.select(entry.id)}>
      <span class="sign" aria-hidden="true">${SIGNS[label]}</span>${t(label)}
      ${probabilities?.[label] !== undefined && html`<span class="share">${percent(probabilities[label], language)}</span>`}
    </button>
  `;
}

/** The panel: a Detection, and what the service remembers of the conversation. */
export function verdict(detection, memory, actions, t, language) {
  const { label, reason, probabilities, historical, new_constraints: brought, reasoning } = detection;
  return html`
    <p class=${`label ${label}`}><span class="sign" aria-hidden="true">${SIGNS[label]}</span>${t(label)}</p>
    <p class="means">${t(`means_${label}`)} ${label === "undetermined" && why(reason, t)}</p>
    ${probabilities && bars(probabilities, t, language)}
    ${historical && pair(detection, actions, t)}
    ${requirements(detection, memory, t)}
    ${brought.length > 0 && html`<section><h3>${t("brought")}</h3>${list(brought, [], t)}</section>`}
    ${reasoning && html`<details><summary>${t("reasoning")}</summary><pre dir="auto">${reasoning}</pre></details>`}
    <p class="facts">${facts(detection, t, language)}</p>
  `;
}

/** The detector's reasons have names; the page's texts explain those that are usual. */
const USUAL = ["cut_off", "refusal", "unparseable", "content_filter"];
const why = (reason, t) => (USUAL.includes(reason) ? t(`why_${reason}`) : reason);

function bars(probabilities, t, language) {
  return html`
    <section>
      <h3>${t("probabilities")}</h3>
      <dl class="bars">
        ${LABELS.map(
          (label) => html`
            <div key=${label} class=${label}>
              <dt><span class="sign" aria-hidden="true">${SIGNS[label]}</span>${t(label)}</dt>
              <dd>
                <span class="bar" aria-hidden="true"><span style=${{ width: `${100 * probabilities[label]}%` }}></span></span>
                <span class="share">${percent(probabilities[label], language)}</span>
              </dd>
            </div>
          `,
        )}
      </dl>
    </section>
  `;
}

function pair(detection, actions, t) {
  return html`
    <section>
      <h3>${t(detection.label === "ER" ? "pair_ER" : "pair")}</h3>
      <div class=${`pair ${detection.label}`}>
        ${["historical", "new"].map((side) => party(side, detection[side], actions, t))}
      </div>
    </section>
  `;
}

function party(side, found, actions, t) {
  return html`
    <article key=${side} class=${side}>
      <h4>${t(side)}</h4>
      ${constraint(found, t)}
      ${found.evidence && html`<blockquote dir="auto">${found.evidence}</blockquote>`}
      ${found.where &&
      html`
        <button type="button" class="link" onClick=${() => actions.show(side)} aria-label=${`${t(side)}: ${t("show")}`}>
          ${t("inTurn", { turn: found.where.turn })}
        </button>
      `}
    </article>
  `;
}

function constraint({ type, dimension, value }, t) {
  return html`
    <p class="constraint" dir="auto">
      <span class="dimension">${dimension.replaceAll("_", " ")}</span> ${value} <span class=${`type ${type}`}>${t(type)}</span>
    </p>
  `;
}

/** What is still required: what the service remembers, or else what the detector lists. */
function requirements(detection, memory, t) {
  const active = memory ? memory.constraints : detection.constraints;
  const clashing = (memory?.open_conflicts ?? []).map(({ historical }) => historical);
  return html`
    <section>
      <h3>${t("active")}</h3>
      ${active.length ? list(active, clashing, t) : html`<p class="none">${t("activeNone")}</p>`}
    </section>
  `;
}

function list(constraints, clashing, t) {
  const same = (one, other) => one.dimension === other.dimension && one.value === other.value;
  return html`
    <ul class="requirements">
      ${constraints.map(
        (found, index) => html`
          <li key=${index}>
            ${constraint(found, t)}
            ${clashing.some((other) => same(found, other)) && html`<span class="clashing">${SIGNS.IC} ${t("open")}</span>`}
          </li>
        `,
      )}
    </ul>
  `;
}

function facts({ model, adapter, version, seconds, prompt_tokens: read, completion_tokens: written }, t, language) {
  const number = new Intl.NumberFormat(language, { maximumFractionDigits: 2 });
  return t("facts", {
    model: [model, adapter, adapter && version].filter(Boolean).join(" · "),
    seconds: number.format(seconds),
    tokens: number.format(read + written),
  });
}
