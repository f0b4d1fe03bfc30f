/** The state of the page and what changes it. After every change the whole page is drawn from the state. */

import { chat, chatModel, detect, Failure, remembered } from "./api.js";
import { EXAMPLES } from "./examples.js";
import { clean } from "./spans.js";
import { preferred, translator } from "./texts.js";
import { render } from "./shared/vendor/preact.js";
import { page } from "./view.js";

const WIDE = matchMedia("(min-width: 56rem)");

/**
 * model: name of the chat model, null if there is none, undefined if that isn't known.
 * entries: {id, role: "user" | "assistant", text, detection?, cut?} in the order of the chat.
 * selected: id of the user's entry whose verdict is shown. busy: null, "checking" or "answering".
 * failure: {kind, detail, until, retry}, `until` in milliseconds of the clock. example: {…, step}, or null.
 */
const state = {
  language: preferred(),
  mode: "reasoned",
  policy: "annotate",
  key: "",
  model: undefined,
  ...fresh(),
};
let ids = 0;
let pinned = true; // the chat stays at its end until the reader scrolls away from it

function fresh() {
  const conversation = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0"));
  return {
    conversation: conversation.join(""),
    entries: [],
    selected: null,
    memory: null,
    busy: null,
    abort: null,
    failure: null,
    example: null,
    asksKey: false,
    drawer: false,
  };
}

function draw() {
  document.documentElement.lang = state.language === "zh" ? "zh-Hans" : "en";
  render(page(state, actions, translator(state.language)), document.getElementById("app"));
  const box = document.getElementById("scroll");
  if (pinned && state.entries.length) box.scrollTop = box.scrollHeight;
}

const messages = () => state.entries.map(({ role, text }) => ({ role, content: text }));

/** Adds a message of the user, has it checked, and gets its answer: `reply` if it is a string, else the chat model's. */
async function turn(text, reply) {
  const { conversation } = state;
  pinned = true;
  const entry = add("user", text);
  state.selected = entry.id;
  const checked = await working("checking", async (signal) => {
    const detection = await detect(messages(), state.mode, conversation, state.key, signal);
    const memory = await remembered(conversation, state.key, signal);
    entry.detection = detection;
    state.memory = memory;
  });
  if (state.conversation !== conversation) return false; // a new one was begun meanwhile
  if (checked !== true) {
    // Unchecked, it was never said: it goes back to where it came from.
    state.entries = state.entries.filter((other) => other !== entry);
    state.selected = state.entries.findLast((other) => other.detection)?.id ?? null;
    if (reply === undefined) field().value = text;
    fail(checked, () => (reply === undefined ? actions.send() : actions.next()));
    return false;
  }
  const { clarification } = entry.detection;
  if (reply !== undefined) add("assistant", reply);
  else if (clarification && state.policy === "clarify") add("assistant", clarification.question);
  else if (state.model) await answer();
  else add("assistant", translator(state.language)("nobody"));
  draw();
  return true;
}

async function answer() {
  const asked = messages();
  const { conversation } = state;
  const entry = add("assistant", "");
  const answered = await working("answering", async (signal) => {
    for await (const part of chat(state.model, asked, state.policy, conversation, state.key, signal)) {
      entry.text += part;
      draw();
    }
  });
  if (answered === true) return;
  entry.cut = true;
  // Turns alternate, also after an answer that never came.
  entry.text ||= translator(state.language)("nobody");
  fail(answered, () => {
    state.entries = state.entries.filter((other) => other !== entry);
    return answer();
  });
}

/** Runs `job` with the page marked busy. True, or the Failure, or null if the user stopped it. */
async function working(busy, job) {
  const abort = new AbortController();
  Object.assign(state, { busy, abort, failure: null });
  draw();
  try {
    await job(abort.signal);
    return true;
  } catch (error) {
    if (error instanceof Failure) return error;
    if (abort.signal.aborted) return null;
    throw error;
  } finally {
    if (state.abort === abort) Object.assign(state, { busy: null, abort: null });
    draw();
  }
}

function add(role, text) {
  const entry = { id: ++ids, role, text: clean(text) };
  state.entries.push(entry);
  return entry;
}

function fail(failure, retry) {
  if (failure) {
    const { kind, detail, wait } = failure;
    state.failure = { kind, detail, retry, until: Date.now() + wait * 1000 };
    state.asksKey ||= kind === "key";
  }
  draw();
  tick();
  if (state.asksKey) document.getElementById("key").focus();
}

/** Draws once a second as long as a retry has to wait. */
function tick() {
  if (state.failure && state.failure.until > Date.now()) setTimeout(() => (draw(), tick()), 250);
  else draw();
}

const field = () => document.getElementById("message");

async function findModel() {
  try {
    state.model = await chatModel(state.key);
  } catch (failure) {
    const locked = failure.kind === "key";
    state.model = locked ? undefined : null;
    state.asksKey ||= locked;
  }
  draw();
}

function forget() {
  const unsent = field().value;
  state.abort?.abort();
  Object.assign(state, fresh());
  draw();
  field().value = unsent;
}

const actions = {
  set(changes) {
    Object.assign(state, changes);
    draw();
  },

  scrolled({ target: box }) {
    pinned = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  },

  /** Sends what is in the field. */
  send() {
    const text = field().value.trim();
    if (!text || state.busy) return;
    field().value = "";
    field().focus();
    if (state.example?.step < state.example?.turns.length) state.example = null;
    turn(text);
  },

  /** Sends the message of a button, which then is gone: the focus moves to the chat. */
  say(text) {
    turn(text);
    document.getElementById("scroll").focus();
  },

  stop() {
    state.abort?.abort();
  },

  retry() {
    const { retry } = state.failure;
    state.failure = null;
    retry();
  },

  askKey() {
    actions.set({ asksKey: !state.asksKey });
    if (state.asksKey) document.getElementById("key").focus();
  },

  useKey(key) {
    const { failure } = state;
    actions.set({ key: key.trim(), asksKey: false });
    findModel();
    if (failure?.kind === "key") actions.retry();
  },

  restart() {
    forget();
    field().focus();
  },

  begin(id) {
    forget();
    state.example = { ...EXAMPLES[state.language].find((example) => example.id === id), step: 0 };
    actions.next();
  },

  /** The example's next message, with the answer that was given to it. */
  async next() {
    const { example } = state;
    const { user, assistant } = example.turns[example.step];
    if ((await turn(user, assistant)) && state.example === example) {
      example.step += 1;
      draw();
    }
  },

  /** Back to the end of the example's history, in a new conversation. */
  rewind() {
    const { example, entries } = state;
    forget();
    Object.assign(state, { example, entries: entries.slice(0, 2 * example.turns.length) });
    state.selected = state.entries.findLast((entry) => entry.role === "user").id;
    draw();
  },

  /** Shows the verdict on an entry; on a narrow screen it covers the chat. */
  select(id) {
    actions.set({ selected: id, drawer: !WIDE.matches });
    if (state.drawer) document.getElementById("close").focus();
  },

  close() {
    const { drawer, selected } = state;
    actions.set({ drawer: false });
    if (drawer) document.getElementById(`chip-${selected}`)?.focus();
  },

  /** Brings the marked words of one side of the pair into view. */
  show(side) {
    actions.close();
    pinned = false;
    document.querySelector(`mark.${side}`).scrollIntoView({ block: "center" });
  },
};

addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (state.drawer) actions.close();
  else if (state.asksKey) actions.set({ asksKey: false });
  else if (state.failure) actions.set({ failure: null });
  else actions.stop();
});

WIDE.addEventListener("change", () => actions.set({ drawer: false }));

draw();
findModel();
