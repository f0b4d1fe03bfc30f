/** The page as a function of its state. */

import { answering, candidate, reasons } from "./answering.js";
import { dialogue, followUp } from "./dialogue.js";
import { LABELS, STEPS } from "./forms.js";
import { html } from "./shared/html.js";
import { itemPage, itemsPage, logPage } from "./leading.js";
import { LANGUAGES } from "./texts.js";

export function page(state, actions, t) {
  if (state.me === undefined) return html`<main class="alone">${state.failure ? failing(state, actions, t) : t("loading")}</main>`;
  if (state.me === null) return html`<main class="alone" id="outside"><h1>SynUC</h1><p>${t("outside")}</p></main>`;
  const places = { work, progress: progressPage, items: itemsPage, item: itemPage, audit: logPage };
  return html`
    ${header(state, actions, t)}
    <main class=${state.place}>${failing(state, actions, t)} ${places[state.place](state, actions, t)}</main>
  `;
}

function header(state, actions, t) {
  const { me, progress, place, language } = state;
  const lead = me.roles.includes("lead");
  const places = lead ? ["progress", "items", "audit"] : ["work", "progress"];
  const bar = progress?.progress;
  return html`
    <header>
      <h1>${me.project}</h1>
      <nav>
        ${places.map(
          (name) => html`
            <button type="button" key=${name} id=${`go-${name}`} class="quiet" aria-current=${place === name ? "page" : false} onClick=${() => actions.go(name)}>
              ${t(`place_${name}`)}
            </button>
          `,
        )}
      </nav>
      ${bar && html`<label class="bar">${t(lead ? "finished" : "judged", bar)} <progress max=${bar.items} value=${bar.finished}></progress></label>`}
      <span class="who">${me.name}</span>
      <select id="language" aria-label=${t("language")} value=${language} onChange=${(event) => actions.speak(event.target.value)}>
        ${Object.entries(LANGUAGES).map(([code, name]) => html`<option key=${code} value=${code}>${name}</option>`)}
      </select>
      <button type="button" class="quiet" id="leave" onClick=${actions.leave}>${t("leave")}</button>
    </header>
  `;
}

function failing({ failure }, actions, t) {
  if (!failure) return null;
  const known = ["offline", "not_in_hand", "moved", "too_late", "seen", "nothing", "bound", "fault"].includes(failure.code);
  return html`
    <div class="failure" role="alert">
      <p>${known ? t(`error_${failure.code}`) : failure.message}</p>
      <button type="button" onClick=${() => actions.set({ failure: null })}>${t("dismiss")}</button>
    </div>
  `;
}

function work(state, actions, t) {
  const { task } = state;
  if (task === undefined) return html`<p>${t("loading")}</p>`;
  if (task === null) {
    return html`
      <section class="nothing" id="nothing">
        <h2>${t("nothing")}</h2>
        <p>${t("nothingMore")}</p>
        <button type="button" id="undo" onClick=${actions.undo}>${t("undo")}</button>
      </section>
    `;
  }
  return html`
    <div class="desk" key=${`${task.item.id}-${task.step}-${task.round}`} data-item=${task.item.id} data-step=${task.step}>
      <div class="reading">
        <p class="facts">${[task.item.subset, task.item.task, task.item.language].filter(Boolean).join(" · ")}</p>
        ${dialogue(task.item, state.unfolded, actions, t)} ${about(state, actions, t)}
      </div>
      <div class="doing">
        ${said(task, state.me.kind, t)} ${answering(state, actions, t)}
        <p class="keys">${t("keys")}</p>
      </div>
    </div>
  `;
}

/** What is judged: the follow-up, or the two reasonings. A candidate stands beside its form. */
function about({ task, me, unfolded }, actions, t) {
  if (task.step === "review" || task.step === "vote") return null;
  const { item } = task;
  const original = task.step === "rewrite" || task.step === "target";
  return html`
    ${followUp(item.follow_up, t(original ? "original" : "followUp"), unfolded, actions, t)}
    ${me.kind === "pairwise" &&
    html`
      <section class="gold">
        <h3>${t("gold")}</h3>
        <div dir="auto">${reasons(item.why, t)}</div>
      </section>
      <div class="two">
        ${["a", "b"].map((side) => html`<section key=${side} class="reasoning"><h3>${side.toUpperCase()}</h3><pre dir="auto">${item[side]}</pre></section>`)}
      </div>
    `}
  `;
}

/** What others have said and this person may know. */
function said(task, kind, t) {
  const others = task.said.filter(({ step, round }) => task.step !== step && !(step === "rewrite" && round === task.round));
  const earlier = task.said.filter(({ step, round, mine }) => task.step === step && (round < task.round || !mine));
  const all = task.step === "review" || task.step === "vote" ? [] : [...others, ...earlier];
  const shown = all.filter(({ mine, step }) => !mine || step === task.step);
  if (!shown.length) return null;
  return html`
    <section class="said">
      <h3>${t(task.step === "target" ? "discuss" : "saidBefore")}</h3>
      ${shown.map((one, at) => html`<div key=${at} class="one">${opinion(one, t)}</div>`)}
    </section>
  `;
}

/** One answer of somebody, in words. */
export function opinion({ step, round, number, mine, who, form }, t) {
  const name = who ?? (mine ? t("you") : t("other", { number }));
  const head = html`<strong>${name}</strong> <span class="note">${t(`step_${step}`)}${round > 1 ? ` ${round}` : ""}</span>`;
  if (step === "rewrite") return html`${head} ${candidate(form, t("candidate", { number }), t)}`;
  if (step === "review") {
    return html`${head} ${["first", "second"].map((side, at) => html`
      <div key=${side}>${t("candidate", { number: at + 1 })}: ${t(form[side].approve ? "approve" : "reject")} ${form[side].reason}</div>
    `)}`;
  }
  const word = form.label ?? form.target;
  return html`
    ${head}
    ${word && html` <span class=${`label ${word}`}>${t(word)}</span>`} ${form.verdict && t(`verdict_${form.verdict}`)}
    ${form.better && t("candidate", { number: form.better === "first" ? 1 : 2 })}
    ${form.why && html`<div dir="auto">${reasons(form.why, t)}</div>`}
    ${(form.note || form.reason) && html`<div dir="auto">${form.note || form.reason}</div>`}
  `;
}

function progressPage({ progress }, _, t) {
  if (!progress) return html`<p>${t("loading")}</p>`;
  const { steps, results, people } = progress.progress;
  const columns = [...STEPS, "waiting", "judged"].filter((step) => step in steps.all);
  return html`
    <section>
      <h2>${t("place_progress")}</h2>
      ${table("", columns.map((step) => t(`step_${step}`)), Object.entries(steps).map(([name, counts]) => [language(name, t), ...columns.map((step) => counts[step] ?? 0)]))}
      ${Object.keys(results).length > 0 && html`<h3>${t("results")}</h3>${pairs(ordered(results, RESULTS), t)}`}
      <h3>${t("people")}</h3>
      ${pairs(people, (name) => name)}
    </section>
    ${team(progress.team, t)}
    <section id="agreement">
      <h2>${t("agreement")}</h2>
      ${progress.agreement ? agreements(progress.agreement, t) : html`<p class="note">${t("agreementLater")}</p>`}
    </section>
  `;
}

/** How many people the project needs, and how many there are. */
function team({ needed, there, fewest }, t) {
  const roles = [...new Set([...Object.keys(needed), ...Object.keys(there)])];
  return html`
    <section id="team">
      <h2>${t("team")}</h2>
      ${table("", [t("needed"), "", t("there")], roles.map((role) => [t(`role_${role}`), needed[role] ?? "–", needed[role] ? t(`besides_${role}`) : "", there[role] ?? 0]))}
      <p class="note">${t("fewest", { fewest })}</p>
    </section>
  `;
}

function agreements({ found, ...groups }, t) {
  const share = (value) => (value === null ? "–" : value.toFixed(4));
  return html`
    ${Object.entries(groups).map(([name, rows]) => {
      if (!rows) return html`<h3>${t(`agreement_${name}`)}</h3><p class="note">${t("agreementNone")}</p>`;
      const statistics = Object.keys(Object.values(rows)[0]).filter((key) => key !== "n");
      return html`
        <h3>${t(`agreement_${name}`)}</h3>
        ${table("", ["n", ...statistics.map((key) => t(`statistic_${key}`))], Object.entries(rows).map(([group, values]) => [language(group, t), values.n, ...statistics.map((key) => share(values[key]))]))}
      `;
    })}
    ${found && html`<h3>${t("agreement_found")}</h3>${table("", [...LABELS, t("disputed")], Object.entries(ordered(found, LABELS)).map(([label, counts]) => [label, ...[...LABELS, "disputed"].map((key) => counts[key] ?? 0)]))}`}
  `;
}

const RESULTS = [...LABELS, "win", "tie", "loss", "disputed"];
const ordered = (counts, names) => Object.fromEntries(names.filter((name) => name in counts).map((name) => [name, counts[name]]));
const language = (name, t) => (name === "all" ? t("all") : name);

const pairs = (counts, title) => html`<ul class="counts">${Object.entries(counts).map(([name, n]) => html`<li key=${name}>${title(name)}: ${n}</li>`)}</ul>`;

export function table(corner, head, rows) {
  return html`
    <table>
      <thead><tr><th scope="col">${corner}</th>${head.map((name, at) => html`<th scope="col" key=${at}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map(([name, ...cells], at) => html`<tr key=${at}><th scope="row">${name}</th>${cells.map((cell, index) => html`<td key=${index}>${cell}</td>`)}</tr>`)}</tbody>
    </table>
  `;
}
