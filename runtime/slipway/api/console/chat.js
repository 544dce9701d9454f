// The conversation: what was said, what is being answered, and the field to say more.

import { Answer } from "./answer.js";
import { byId, element } from "./dom.js";
import { chunks } from "./server.js";
import { watchTokens } from "./tokens.js";

const NEAR = 80; // pixels from the end within which new text keeps the end in view

export class Chat {
  #fields;
  #messages = [];
  #running = null;
  #following = true; // the end stays in view, until the reader scrolls away from it
  #log = byId("log");
  #text = byId("message");
  #send = byId("send");
  #retry = byId("retry");

  /** `fields(continuing)` are a request's, or null where the panels hold something that cannot be sent. */
  constructor(fields) {
    this.#fields = fields;
    watchTokens(this.#log);
    this.#log.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.#log;
      this.#following = scrollHeight - scrollTop - clientHeight < NEAR;
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running) this.#running.abort();
      else this.#say();
    });
    this.#text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.#running) this.#say();
    });
    this.#retry.addEventListener("click", () => this.#again());
    byId("clear").addEventListener("click", () => this.clear());
    for (const idea of document.querySelectorAll(".idea")) {
      idea.addEventListener("click", () => {
        this.#text.value = idea.textContent;
        this.#say();
      });
    }
  }

  clear() {
    this.#running?.abort();
    this.#running = null;
    this.#messages = [];
    for (const turn of this.#log.querySelectorAll(".turn")) turn.remove();
    this.#show();
    this.#text.focus();
  }

  #say() {
    const text = this.#text.value;
    if (!text.trim() || !this.#add([{ role: "user", content: text }])) return;
    this.#text.value = "";
  }

  /** Adds turns and asks for the next one; false where the panels hold what cannot be sent. */
  #add(turns) {
    const continuing = turns[0].role === "tool";
    const fields = this.#fields(continuing);
    if (fields === null) return false;
    this.#messages.push(...turns);
    for (const { role, content } of turns) {
      const label = role === "user" ? "You" : "Result";
      this.#log.append(element("article", { className: `turn said ${role}`, "aria-label": label }, content));
    }
    this.#ask(fields);
    return true;
  }

  /** Another answer in the place of the last one, or of the one that failed. */
  #again() {
    const asked = this.#messages.findLastIndex(({ role }) => role !== "assistant") + 1;
    const fields = this.#fields(this.#messages[asked - 1].role === "tool");
    if (fields === null) return;
    this.#messages.length = asked;
    this.#log.lastElementChild.remove();
    this.#ask(fields);
  }

  async #ask({ system, ...fields }) {
    const running = (this.#running = new AbortController());
    const messages = this.#messages;
    const answer = new Answer();
    this.#closeCalls();
    this.#log.append(answer.view);
    this.#following = true;
    this.#show();
    let failure = null;
    try {
      const said = system ? [{ role: "system", content: system }, ...messages] : messages;
      for await (const chunk of chunks("v1/chat/completions", { ...fields, messages: said }, running.signal)) {
        answer.take(chunk);
        this.#show();
      }
    } catch (error) {
      failure = error;
    }
    if (messages !== this.#messages) return; // cleared meanwhile
    const stopped = running.signal.aborted;
    answer.end({ cut: failure !== null, byUser: stopped, onResults: (results) => this.#answerCalls(answer, results) });
    if (failure && !stopped) answer.view.append(complaint(failure));
    else if (answer.message) messages.push(answer.message);
    this.#running = null;
    this.#show();
  }

  /** What has been said since leaves no place for results. */
  #closeCalls() {
    for (const button of this.#log.querySelectorAll(".calls > button")) button.remove();
    for (const field of this.#log.querySelectorAll(".calls textarea")) field.readOnly = true;
  }

  #answerCalls(answer, results) {
    this.#add(answer.calls.map(({ id }, index) => ({ role: "tool", tool_call_id: id, content: results[index] })));
  }

  /** The buttons as they are of use now, and the end in view. */
  #show() {
    const busy = this.#running !== null;
    this.#send.textContent = busy ? "Stop" : "Send";
    this.#send.classList.toggle("stop", busy);
    this.#retry.hidden = busy || this.#messages.length === 0;
    byId("clear").hidden = this.#messages.length === 0;
    byId("welcome").hidden = this.#messages.length > 0;
    if (this.#following) this.#log.scrollTop = this.#log.scrollHeight;
  }
}

function complaint(failure) {
  return element("p", { className: "complaint", role: "alert" }, failure.message);
}
