// Requests to the server that this page came from, with the key and its sentences for what goes wrong.

const ROOT = new URL("../", import.meta.url); // what a proxy put before it is part of it
const KEY = "slipway.key";

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Tells of `unauthorized` answers and of `trouble`: the server is away or not ready. */
export const notices = new EventTarget();

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** The answer to a request that went well; ServerError for any other. */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key.get()) headers.set("Authorization", `Bearer ${inBytes(key.get())}`);
  let answer;
  try {
    answer = await fetch(new URL(path, ROOT), { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw unreachable(error);
  }
  if (answer.ok) return answer;
  const failure = await failureOf(answer);
  if (failure.status === 401) notices.dispatchEvent(new CustomEvent("unauthorized", { detail: failure.message }));
  if (failure.status === 503) notices.dispatchEvent(new Event("trouble"));
  throw failure;
}

export const json = async (path) => (await request(path)).json();

/** Whether the server admits requests, and what it is at otherwise. */
export async function readiness() {
  try {
    const answer = await fetch(new URL("ready", ROOT), { cache: "no-store" });
    return answer.ok ? { ready: true } : { ready: false, ...(await answer.json()) };
  } catch {
    return { ready: false, phase: "away" };
  }
}

/** The chunks of a streamed answer. Raises ServerError where it breaks, also in the middle. */
export async function* chunks(path, body, signal) {
  const answer = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of eventsOf(answer)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message);
    yield chunk;
  }
  throw new ServerError("The connection was lost before the answer's end.");
}

/** The data of each server-sent event. */
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (pending + value).split("\n\n");
      pending = events.pop();
      yield* events.filter((event) => event.startsWith("data: ")).map((event) => event.slice(6));
    }
  } catch (error) {
    throw unreachable(error);
  } finally {
    reader.cancel().catch(() => {}); // a stream that broke has said so already
  }
}

async function failureOf(answer) {
  try {
    return new ServerError((await answer.json()).error.message, answer.status);
  } catch {
    return new ServerError(`The server answered with status ${answer.status}.`, answer.status);
  }
}

function unreachable(error) {
  if (error.name === "AbortError" || error instanceof ServerError) return error;
  notices.dispatchEvent(new Event("trouble"));
  return new ServerError("The server cannot be reached. Is it still running?");
}

/** UTF-8 as the one-byte characters that a header takes. */
function inBytes(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}
