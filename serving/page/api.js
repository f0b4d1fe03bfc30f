/** The service's routes, all on the page's own origin. */

/** A call that failed. `kind` names the text that explains it; `wait` is in seconds, `detail` the service's own words. */
export class Failure extends Error {
  constructor(kind, detail = "", wait = 0) {
    super(detail || kind);
    Object.assign(this, { kind, detail, wait });
  }
}

const KINDS = { 401: "key", 413: "long", 502: "upstream", 503: "busy", 504: "upstream" };

async function call(path, { key, body, headers = {}, signal }) {
  const request = { headers: { ...headers }, signal };
  if (key) request.headers.Authorization = `Bearer ${key}`;
  if (body) {
    request.method = "POST";
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, request);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Failure("offline");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  throw new Failure(
    KINDS[answer.status] ?? (answer.status < 500 ? "refused" : "fault"),
    message(text) || String(answer.status),
    Number(answer.headers.get("Retry-After")) || 0,
  );
}

/** The words of an error body, which a proxy in between may have written in its own form. */
function message(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return "";
  }
}

/** The name of the chat model behind the guard. Fails where there is none. */
export async function chatModel(key) {
  const models = await (await call("v1/models", { key })).json();
  return models.data[0].id;
}

/** The Detection of the last message. */
export async function detect(messages, mode, conversation, key, signal) {
  const body = { messages, mode, conversation_id: conversation };
  return (await call("v1/detect", { key, body, signal })).json();
}

/** What the service remembers of a conversation, or null: a verdict is worth showing without it. */
export async function remembered(conversation, key, signal) {
  try {
    return await (await call(`v1/conversations/${conversation}`, { key, signal })).json();
  } catch (error) {
    if (error instanceof Failure) return null;
    throw error;
  }
}

/** The parts of the chat model's answer, as they come. The service judged the last message when `detect` asked. */
export async function* chat(model, messages, policy, conversation, key, signal) {
  const body = { model, messages, stream: true };
  const headers = { "x-synuc-policy": policy, "x-synuc-conversation": conversation };
  const answer = await call("v1/chat/completions", { key, body, headers, signal });
  let done = false;
  try {
    for await (const data of events(answer.body)) {
      if (data === "[DONE]") {
        done = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure("upstream", chunk.error.message);
      const text = chunk.choices[0]?.delta.content;
      if (text) yield text;
    }
  } catch (error) {
    // Else the network failed, or what came is no chunk.
    throw error instanceof Failure || error.name === "AbortError" ? error : new Failure("cut");
  }
  if (!done) throw new Failure("cut");
}

/** The data of each server-sent event. */
async function* events(stream) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}
