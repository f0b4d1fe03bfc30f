/** The state of the page and what changes it. After every change the whole page is drawn from the state. */

import * as api from "./api.js";
import { answered, begin, complete, keyed } from "./forms.js";
import { prefer, preferred, translator } from "./texts.js";
import { render } from "./shared/vendor/preact.js";
import { page } from "./view.js";

const PAUSE = 500; // from the last keystroke to saving, in milliseconds
const POLL = 10_000;

/**
 * me: who is signed in; null: nobody; undefined: not known yet. place: "work", "progress", "items", "item" or "audit".
 * task and form: what is being answered; `task` is null if nothing is left. saved: "", "saving", "saved" or "local".
 * findings: of the answer. failure: {code, message}. passing: whether the person is asked why they pass.
 */
const state = {
  language: preferred(),
  me: undefined,
  place: "work",
  task: undefined,
  form: null,
  saved: "",
  findings: [],
  busy: false,
  failure: null,
  passing: false,
  unfolded: new Set(),
  progress: null,
  list: null,
  listed: { step: "", page: 0 },
  seen: null,
  log: null,
};
let timer = 0;
let saving = Promise.resolve();

function draw() {
  document.documentElement.lang = state.language === "zh" ? "zh-Hans" : "en";
  render(page(state, actions, translator(state.language)), document.getElementById("app"));
}

/** Runs `job` with the page marked busy; what fails is shown. Gives whether it went well. */
async function doing(job) {
  if (state.busy) return false;
  Object.assign(state, { busy: true, failure: null });
  draw();
  try {
    await job();
    return true;
  } catch (failure) {
    fail(failure);
    return false;
  } finally {
    state.busy = false;
    draw();
  }
}

function fail(failure) {
  if (!(failure instanceof api.Failure)) throw failure;
  if (failure.code === "sign_in") Object.assign(state, { me: null, task: undefined });
  if (failure.code === "findings") state.findings = failure.findings;
  else state.failure = { code: failure.code, message: failure.message };
}

/* What is written is kept in this browser at once, and by the service a moment later. */

const place = (task) => `synuc-review/${state.me.project}/${state.me.name}/${task.item.id}/${task.step}/${task.round}`;

function show(task) {
  Object.assign(state, { task, findings: [], saved: "", passing: false, unfolded: new Set() });
  state.form = task && begin(task, state.me.kind);
  const local = task && localStorage.getItem(place(task));
  if (local) {
    Object.assign(state.form, JSON.parse(local));
    later();
  } else if (task?.step === "rewrite" && task.draft) check();
  draw();
  window.scrollTo(0, 0);
}

function later() {
  state.saved = "local";
  clearTimeout(timer);
  timer = setTimeout(save, PAUSE);
}

function save() {
  clearTimeout(timer);
  const { task, form } = state;
  if (!task || state.saved === "saved" || state.saved === "") return saving;
  saving = saving.then(async () => {
    try {
      await api.saveDraft(task, form);
      if (state.form === form) {
        state.saved = "saved";
        localStorage.removeItem(place(task));
      }
    } catch (failure) {
      // A server that is being started again is away, or a proxy in front of it says so.
      if (failure.code === "offline" || failure.code === "fault") timer = setTimeout(save, POLL);
      else fail(failure);
    }
    draw();
    if (state.form === form) await check();
  });
  return saving;
}

/** What is to be said about a rewrite while it is being written. */
async function check() {
  const { task, form } = state;
  if (task?.step !== "rewrite" || !form.follow_up.trim()) return;
  try {
    const findings = await api.check(task, answered(task, state.me.kind, form));
    if (state.form === form) state.findings = findings;
  } catch (failure) {
    if (!(failure instanceof api.Failure)) throw failure; // the answer will say what is wrong
  }
  draw();
}

async function refresh() {
  if (!state.me || document.hidden) return;
  try {
    state.progress = await api.progress();
    if (state.task === null && state.place === "work" && !lead()) show(await api.next());
  } catch (failure) {
    if (failure.code === "sign_in") fail(failure);
  }
  draw();
}

const lead = () => state.me.roles.includes("lead");

const actions = {
  set(changes) {
    Object.assign(state, changes);
    draw();
  },

  speak(language) {
    prefer(language);
    actions.set({ language });
  },

  /** Changes the form, and keeps the change. */
  write(changes) {
    const { task } = state;
    if (!task?.asked || state.busy) return;
    state.form = { ...state.form, ...changes };
    state.findings = state.findings.filter(({ code }) => !("confirmed" in changes) || !changes.confirmed.includes(code));
    localStorage.setItem(place(task), JSON.stringify(state.form));
    later();
    draw();
    if (changes.label && changes.label !== "ND" && state.me.kind === "benchmark") document.getElementById("why")?.focus();
  },

  confirm(code) {
    actions.write({ confirmed: [...new Set([...state.form.confirmed, code])] });
  },

  async submit() {
    const { task, form, me } = state;
    if (!task?.asked || !complete(task, me.kind, form)) return;
    clearTimeout(timer);
    await saving;
    const done = await doing(async () => {
      await api.answer(task, answered(task, me.kind, form));
      localStorage.removeItem(place(task));
      state.saved = "";
      show(await api.next());
    });
    if (done) refresh();
  },

  async undo() {
    await save();
    if (await doing(async () => show(await api.undo()))) refresh();
  },

  async pass(reason) {
    const { task } = state;
    await save();
    await doing(async () => {
      await api.skip(task.item.id, reason);
      show(await api.next());
    });
  },

  toggle(id) {
    const { unfolded } = state;
    if (!unfolded.delete(id)) unfolded.add(id);
    draw();
  },

  async go(where) {
    await save();
    Object.assign(state, { place: where, failure: null });
    draw();
    await doing(async () => {
      if (where === "items") state.list = await api.items(state.listed.step, state.listed.page);
      if (where === "audit") state.log = await api.audit();
      if (where === "progress") state.progress = await api.progress();
    });
  },

  async list(changes) {
    Object.assign(state.listed, changes);
    await actions.go("items");
  },

  async open(id) {
    await doing(async () => Object.assign(state, { seen: await api.look(id), place: "item", unfolded: new Set() }));
  },

  async older() {
    await doing(async () => state.log.push(...(await api.audit(state.log.at(-1).id))));
  },

  async exclude(id, reason) {
    if (await doing(() => api.exclude(id, reason))) await actions.open(id);
  },

  async reopen(id, step, reason) {
    if (await doing(() => api.reopen(id, step, reason))) await actions.open(id);
  },

  async leave() {
    await save();
    await doing(async () => {
      await api.leave();
      Object.assign(state, { me: null, task: undefined });
    });
  },
};

async function start() {
  const token = location.hash.slice(1);
  if (token) history.replaceState(null, "", location.pathname);
  const entered = await doing(async () => {
    state.me = await api.enter(token);
    Object.assign(state, { place: lead() ? "progress" : "work", failure: null });
    if (!lead()) show(await api.next());
  });
  if (entered) await refresh();
}

addEventListener("keydown", (event) => {
  if (event.isComposing || !state.me) return;
  const writing = event.target.matches("textarea, input, select");
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    actions.submit();
    return;
  }
  if (event.key === "Escape") {
    event.target.blur();
    actions.set({ failure: null, passing: false });
  }
  if (writing || event.ctrlKey || event.metaKey || event.altKey || state.place !== "work" || !state.task) return;
  const onButton = event.target.matches("button, summary");
  const change = /^[1-4]$/.test(event.key) ? keyed(state.task, state.me.kind, Number(event.key), state.form) : null;
  if (change) {
    event.preventDefault(); // else the digit ends up in the field that gets the focus
    actions.write(change);
  } else if (event.key === "n" || (event.key === "Enter" && !onButton)) actions.submit();
  else if (event.key === "u") actions.undo();
  else if (event.key === "f") actions.toggle("middle");
});

addEventListener("hashchange", () => location.hash.length > 1 && start());
addEventListener("visibilitychange", () => (document.hidden ? save() : refresh()));
addEventListener("online", save);
setInterval(refresh, POLL);

draw();
start();

