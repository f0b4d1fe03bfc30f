/** What only leads see: all items, one of them with all that was said, and the log. */

import { dialogue, followUp } from "./dialogue.js";
import { STEPS } from "./forms.js";
import { html } from "./shared/html.js";
import { opinion } from "./view.js";

export function itemsPage({ list, listed }, actions, t) {
  if (!list) return html`<p>${t("loading")}</p>`;
  const last = Math.max(0, Math.ceil(list.total / list.page_size) - 1);
  return html`
    <section>
      <div class="buttons">
        <select id="step" aria-label=${t("step")} value=${listed.step} onChange=${(event) => actions.list({ step: event.target.value, page: 0 })}>
          <option value="">${t("all")}</option>
          ${STEPS.map((step) => html`<option key=${step} value=${step}>${t(`step_${step}`)}</option>`)}
        </select>
        <button type="button" disabled=${listed.page === 0} onClick=${() => actions.list({ page: listed.page - 1 })}>←</button>
        <span>${listed.page + 1} / ${last + 1}</span>
        <button type="button" disabled=${listed.page >= last} onClick=${() => actions.list({ page: listed.page + 1 })}>→</button>
        <span class="note">${t("total", list)}</span>
      </div>
      <ul class="items">
        ${list.items.map(
          ({ id, key, language, step, round, answered, result }) => html`
            <li key=${id}>
              <button type="button" class="row" data-item=${id} onClick=${() => actions.open(id)}>
                <span class="key">#${id} ${key}</span> <span>${language}</span>
                <span>${t(`step_${step}`)}${round > 1 ? ` ${round}` : ""}${answered ? ` +${answered}` : ""}</span>
                <span class=${`label ${result ?? ""}`}>${result ?? ""}</span>
              </button>
            </li>
          `,
        )}
      </ul>
    </section>
  `;
}

export function itemPage({ seen, unfolded }, actions, t) {
  const { item, step, round, said, result, synthetic } = seen;
  const reached = [...new Set(said.map((one) => one.step))];
  const decide = (event) => {
    event.preventDefault();
    const { reason, to } = event.target.elements;
    if (to.value === "exclude") actions.exclude(item.id, reason.value.trim());
    else actions.reopen(item.id, to.value, reason.value.trim());
  };
  return html`
    <div class="desk" data-item=${item.id} data-step=${step}>
      <div class="reading">
        ${dialogue(item, unfolded, actions, t)} ${followUp(item.follow_up, t("followUp"), unfolded, actions, t)}
        ${["a", "b"].map((side) => item[side] && html`<section key=${side} class="reasoning"><h3>${side.toUpperCase()}</h3><pre dir="auto">${item[side]}</pre></section>`)}
      </div>
      <div class="doing">
        <p class="facts">
          ${t(`step_${step}`)}${round > 1 ? ` ${round}` : ""} ${result && `→ ${result}`} ${synthetic && `(${t("synthetic")}: ${synthetic})`}
        </p>
        <section class="said">${said.map((one, at) => html`<div key=${at} class="one">${opinion(one, t)}</div>`)}</section>
        <form class="passing" onSubmit=${decide}>
          <select name="to" id="to" aria-label=${t("decide")}>
            ${step !== "excluded" && html`<option value="exclude">${t("exclude")}</option>`}
            ${reached.map((name) => html`<option key=${name} value=${name}>${t("reopen", { step: t(`step_${name}`) })}</option>`)}
          </select>
          <label>${t("reason")} <input name="reason" required maxlength="500" /></label>
          <button id="decide">${t("decide")}</button>
        </form>
        <button type="button" class="quiet" onClick=${() => actions.go("items")}>${t("back")}</button>
      </div>
    </div>
  `;
}

export function logPage({ log, language }, actions, t) {
  if (!log) return html`<p>${t("loading")}</p>`;
  const time = new Intl.DateTimeFormat(language, { dateStyle: "short", timeStyle: "medium" });
  return html`
    <section>
      <ol class="log">
        ${log.map(
          ({ id, at, who, what, item, detail }) => html`
            <li key=${id}>
              <time>${time.format(at * 1000)}</time> <strong>${who ?? t("commandLine")}</strong> ${what} ${item && `#${item}`} <code>${JSON.stringify(detail)}</code>
            </li>
          `,
        )}
      </ol>
      ${log.length > 0 && log.at(-1).id > 1 && html`<button type="button" onClick=${actions.older}>${t("older")}</button>`}
    </section>
  `;
}
