/** The app's routes, all on the page's own origin. */

/** A call that failed. `code` is the service's, or "offline"; `findings` are those of an answer with faults. */
export class Failure extends Error {
  constructor(code, message = "", findings = []) {
    super(message || code);
    Object.assign(this, { code, findings });
  }
}

let csrf = "";

async function call(method, path, body) {
  const request = { method, headers: { "X-CSRF-Token": csrf } };
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(`api/${path}`, request);
  } catch {
    throw new Failure("offline");
  }
  if (answer.status === 204) return null;
  let data;
  try {
    data = await answer.json();
  } catch {
    throw new Failure("fault", String(answer.status));
  }
  if (!answer.ok) throw new Failure(data.error?.code ?? "fault", data.error?.message, data.error?.findings);
  return data;
}

/** The person behind a personal link, or behind this browser's cookie. */
export async function enter(token) {
  const me = token ? await call("POST", "session", { token }) : await call("GET", "me");
  csrf = me.csrf;
  return me;
}

export const leave = () => call("DELETE", "session");
export const next = () => call("POST", "next", {});
export const look = (id) => call("GET", `items/${id}`);
export const undo = () => call("POST", "undo", {});
export const progress = () => call("GET", "progress");
export const skip = (id, reason) => call("POST", `items/${id}/skip`, { reason });
export const saveDraft = (task, form) => call("PUT", `items/${task.item.id}/draft`, sent(task, form));
export const check = (task, form) => call("POST", `items/${task.item.id}/check`, sent(task, form));
export const answer = (task, form) => call("POST", `items/${task.item.id}/answer`, sent(task, form));
export const items = (step, page) => call("GET", `items?page=${page}${step ? `&step=${step}` : ""}`);
export const audit = (before) => call("GET", `audit${before ? `?before=${before}` : ""}`);
export const exclude = (id, reason) => call("POST", `items/${id}/exclude`, { reason });
export const reopen = (id, step, reason) => call("POST", `items/${id}/reopen`, { step, reason });

function sent({ step, round }, form) {
  return { step, round, form };
}
