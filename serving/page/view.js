/** The page's frame and the chat. */

import { EXAMPLES } from "./examples.js";
import { html } from "./shared/html.js";
import { pieces } from "./spans.js";
import { LANGUAGES } from "./texts.js";
import { chip, verdict } from "./verdict.js";

/** The whole page. `t` gives its words. */
export function page(state, actions, t) {
  const shown = state.entries.find((entry) => entry.id === state.selected);
  const busy = state.busy && t(state.busy);
  return html`
    <header class="top">
      <h1>SynUC</h1>
      <p class="tagline">${t("tagline")}</p>
      <div class="tools">
        <button type="button" class="quiet" onClick=${actions.restart} disabled=${!state.entries.length}>
          ${t("restart")}
        </button>
        <${choose} id="language" label=${t("language")} hidden value=${state.language} options=${LANGUAGES}
          onPick=${(language) => actions.set({ language })} />
      </div>
    </header>
    <main>
      <section class="chat" aria-labelledby="chat" inert=${state.drawer}>
        <h2 class="unseen" id="chat">${t("chat")}</h2>
        <div class="scroll" id="scroll" tabindex="-1" onScroll=${actions.scrolled}>
          ${!state.entries.length && welcome(state, actions, t)}
          <div class="log" role="log" aria-busy=${Boolean(state.busy)}>
            ${state.entries.map((entry) => message(entry, shown, state, actions, t))}
          </div>
          ${question(state, actions, t)} ${followUps(state, actions, t)}
        </div>
        <div class="dock">
          ${failure(state, actions, t)} ${example(state, actions, t)} ${composer(state, actions, t)}
          ${keyForm(state, actions, t)} ${settings(state, actions, t)}
        </div>
      </section>
      <aside class=${state.drawer ? "open" : ""} aria-label=${t("verdict")}>
        <button type="button" class="quiet close" id="close" onClick=${actions.close}>${t("close")}</button>
        <h2 class="unseen">${t("verdict")}</h2>
        ${shown?.detection
          ? verdict(shown.detection, state.memory, actions, t, state.language)
          : html`<p class=${busy ? "nothing busy" : "nothing"}>${busy || t("nothing")}</p>`}
      </aside>
    </main>
    <p class="unseen" role="status">${busy || (shown?.detection && t(shown.detection.label))}</p>
  `;
}

/** A labelled selection: `options` names what each value is called. */
function choose({ id, label, hidden, value, options, onPick }) {
  return html`
    <label class="choose" for=${id}>
      <span class=${hidden ? "unseen" : ""}>${label}</span>
      <select id=${id} value=${value} onChange=${(event) => onPick(event.target.value)}>
        ${Object.entries(options).map(
          ([name, words]) => html`<option key=${name} value=${name} selected=${name === value}>${words}</option>`,
        )}
      </select>
    </label>
  `;
}

function welcome(state, actions, t) {
  return html`
    <div class="welcome">
      <p class="lead">${t("welcome")}</p>
      <p>${t("welcomeMore")}</p>
      <ul>
        ${EXAMPLES[state.language].map(
          ({ id, title, turns }) => html`
            <li key=${id}>
              <button type="button" class="card" data-example=${id} onClick=${() => actions.begin(id)}>
                <strong>${title}</strong><span>${turns[0].user}</span>
              </button>
            </li>
          `,
        )}
      </ul>
    </div>
  `;
}

function message(entry, shown, state, actions, t) {
  const users = state.entries.filter((other) => other.role === "user");
  const turn = entry.role === "user" && users.indexOf(entry) + 1;
  const working = state.busy && entry === state.entries.at(-1);
  return html`
    <article key=${entry.id} class=${`message ${entry.role}`}>
      <h3>${t(entry.role === "user" ? "you" : "assistant")}</h3>
      <div class="text" dir="auto">
        ${pieces(entry.text, turn ? marks(shown?.detection, turn) : []).map(({ text, sides }) =>
          sides.length ? html`<mark class=${[...sides, shown.detection.label].join(" ")} title=${sides.map(t).join(", ")}>${text}</mark>` : text,
        )}
      </div>
      ${entry.cut && html`<p class="note">${t("cut")}</p>`}
      ${working && html`<p class="note busy">${t(state.busy)}</p>`}
      ${entry.detection && chip(entry, entry === shown, actions, t, state.language)}
    </article>
  `;
}

/** The two sides of a detection's pair that stand in the user's message number `turn`. */
function marks(detection, turn) {
  return ["historical", "new"]
    .filter((side) => detection?.[side]?.where?.turn === turn)
    .map((side) => ({ side, ...detection[side].where }));
}

/** The clarifying question about the last message, its choices as buttons. */
function question(state, actions, t) {
  const last = state.entries.findLast((entry) => entry.role === "user");
  const clarification = last?.detection?.clarification;
  if (!clarification || state.busy) return null;
  const asked = state.entries.at(-1).text === clarification.question;
  return html`
    <section class="question" aria-label=${t("clarify")}>
      <h3>${t("clarify")}</h3>
      ${!asked && html`<p dir="auto">${clarification.question}</p>`}
      <div class="buttons">
        ${clarification.choices.map(
          ({ id, label, message }) => html`
            <button type="button" key=${id} data-choice=${id} onClick=${() => actions.say(message)}>${label}</button>
          `,
        )}
      </div>
    </section>
  `;
}

function failure({ failure, busy }, actions, t) {
  const wait = failure ? Math.max(0, Math.ceil((failure.until - Date.now()) / 1000)) : 0;
  return html`
    <div class="failure" hidden=${!failure}>
      <p role="alert">
        ${failure && html`<strong>${t(`error_${failure.kind}`)}</strong> <span>${failure.detail}</span>`}
      </p>
      ${failure &&
      html`
        <div class="buttons">
          <button type="button" id="again" onClick=${actions.retry} disabled=${wait > 0 || busy}>
            ${wait ? t("againIn", { seconds: wait }) : t("again")}
          </button>
          <button type="button" class="quiet" onClick=${() => actions.set({ failure: null })}>${t("dismiss")}</button>
        </div>
      `}
    </div>
  `;
}

/** The choice of follow-ups at the end of an example's history. */
function followUps({ example, busy, entries }, actions, t) {
  if (!example || example.step < example.turns.length || entries.length > 2 * example.turns.length) return null;
  return html`
    <section class="follow">
      <h3>${t("exampleChoose")}</h3>
      ${Object.entries(example.follow).map(
        ([kind, text]) => html`
          <button type="button" key=${kind} class="card" data-follow=${kind} disabled=${busy} onClick=${() => actions.say(text)}>
            <strong>${t(`follow_${kind}`)}</strong><span>${text}</span>
          </button>
        `,
      )}
    </section>
  `;
}

/** The example that is shown, with a button for its next message, or back to the choice of follow-ups. */
function example({ example, busy, entries }, actions, t) {
  if (!example) return null;
  const { title, turns, step } = example;
  const button = (id, action, words) =>
    html`<button type="button" id=${id} key=${id} disabled=${busy} onClick=${action}>${t(words)}</button>`;
  return html`
    <section class="example">
      <p>${t("example", { title })}</p>
      ${step < turns.length && button("next", actions.next, "exampleNext")}
      ${entries.length > 2 * turns.length && button("rewind", actions.rewind, "exampleAgain")}
    </section>
  `;
}

function composer({ busy }, actions, t) {
  const submit = (event) => {
    event.preventDefault();
    actions.send();
  };
  // While an input method is composing (Chinese, Japanese, …), Enter picks a candidate.
  const keys = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && submit(event);
  return html`
    <form class="composer" onSubmit=${submit}>
      <label class="unseen" for="message">${t("placeholder")}</label>
      <textarea id="message" rows="1" dir="auto" placeholder=${t("placeholder")} aria-describedby="hint" onKeyDown=${keys} />
      ${busy
        ? html`<button type="button" id="stop" key="stop" onClick=${actions.stop}>${t("stop")}</button>`
        : html`<button type="submit" id="send" key="send" class="primary">${t("send")}</button>`}
      <p class="unseen" id="hint">${t("hint")}</p>
    </form>
  `;
}

function settings({ mode, policy, asksKey, model }, actions, t) {
  const named = (kind, values) => Object.fromEntries(values.map((value) => [value, t(`${kind}_${value}`)]));
  return html`
    <div class="settings">
      <${choose} id="mode" label=${t("mode")} value=${mode} options=${named("mode", ["reasoned", "fast"])}
        onPick=${(mode) => actions.set({ mode })} />
      <${choose} id="policy" label=${t("policy")} value=${policy}
        options=${named("policy", ["annotate", "clarify", "inject"])} onPick=${(policy) => actions.set({ policy })} />
      <button type="button" class="quiet" id="open-key" aria-expanded=${asksKey} aria-controls="key-form"
        onClick=${actions.askKey}>${t("key")}</button>
      <span class="model">${model ? t("connected", { model }) : model === null && t("nobodyWhy")}</span>
    </div>
  `;
}

function keyForm({ asksKey }, actions, t) {
  const submit = (event) => {
    event.preventDefault();
    actions.useKey(event.target.elements.key.value);
  };
  return html`
    <form class="key" id="key-form" hidden=${!asksKey} onSubmit=${submit}>
      <label for="key">${t("keyField")}</label>
      <input id="key" name="key" type="password" autocomplete="off" spellcheck=${false} aria-describedby="key-help" />
      <button type="submit">${t("keyUse")}</button>
      <p id="key-help">${t("keyHelp")}</p>
    </form>
  `;
}
