// One answer of the model as it arrives: reasoning folded, text in tokens, calls with a place for their results.

import { element } from "./dom.js";
import { percent, Tokens } from "./tokens.js";

export class Answer {
  content = "";
  reasoning = "";
  calls = [];
  #tokens = new Tokens();
  #begun = performance.now();
  #first = null;
  #finish = null;
  #usage = null;
  #text = prose("Answer");
  #thought = prose("Reasoning");
  #summary = element("summary", {}, "Reasoning …");
  #folded = element("details", { className: "reasoning", hidden: true }, this.#summary, this.#thought);
  #calls = element("form", { className: "calls", noValidate: true, hidden: true });
  #facts = element("footer", { className: "facts" });

  constructor() {
    this.view = element(
      "article",
      { className: "turn answer working", "aria-label": "Answer", "aria-busy": "true" },
      this.#folded,
      this.#text,
      this.#calls,
      this.#facts,
    );
  }

  /** Add what a chunk of the stream tells. */
  take(chunk) {
    this.#usage = chunk.usage ?? this.#usage;
    for (const { delta, logprobs, finish_reason: finish } of chunk.choices) {
      if (logprobs) this.#tokens.learn(logprobs.content);
      if (delta.reasoning_content) this.#think(delta.reasoning_content);
      if (delta.content) this.#say(delta.content);
      for (const call of delta.tool_calls ?? []) this.#call(call);
      this.#finish = finish ?? this.#finish;
    }
  }

  /** The end: by itself, or `cut`, by the user or by a failure. `onResults` gets the texts that are typed in
   * for the calls, in their order. */
  end({ cut, byUser, onResults }) {
    this.view.classList.remove("working");
    this.view.setAttribute("aria-busy", "false");
    if (cut) this.calls = []; // half a call is none
    this.#summary.textContent = "Reasoning";
    this.#facts.replaceChildren(...this.#told(byUser).map((fact) => element("span", {}, fact)));
    if (this.calls.length) this.#askForResults(onResults);
  }

  /** The turn as later requests repeat it; null where nothing came. */
  get message() {
    if (!this.content && !this.reasoning && !this.calls.length) return null;
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.calls.length) {
      message.tool_calls = this.calls.map(({ id, name, text }) => ({
        id,
        type: "function",
        function: { name, arguments: text },
      }));
    }
    return message;
  }

  #think(text) {
    this.#begin();
    this.reasoning += text;
    this.#folded.hidden = false;
    this.#thought.append(...this.#tokens.spans(text));
  }

  #say(text) {
    this.#begin();
    this.content += text;
    this.#text.append(...this.#tokens.spans(text));
  }

  #call({ index, id, function: { name, arguments: text } }) {
    this.#begin();
    if (id !== undefined) {
      const shown = element("code", { className: "arguments" });
      this.calls[index] = { id, name, text: "", shown };
      const title = element("h3", {}, "Calls ", element("code", {}, name));
      this.#calls.append(element("section", { className: "call", "aria-label": `Call of ${name}` }, title, shown));
      this.#calls.hidden = false;
    }
    this.calls[index].text += text;
    this.calls[index].shown.append(text);
  }

  #begin() {
    this.#first ??= performance.now();
  }

  #askForResults(onResults) {
    const fields = this.calls.map(({ name, text, shown }) => {
      shown.replaceChildren(indented(text));
      const field = element("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: "Type its result …" });
      shown.parentElement.append(field);
      return field;
    });
    this.#calls.append(element("button", { className: "primary", type: "submit" }, "Send result"));
    this.#calls.addEventListener("submit", (event) => {
      event.preventDefault();
      onResults(fields.map((field) => field.value));
    });
  }

  #told(byUser) {
    const seconds = (performance.now() - (this.#first ?? this.#begun)) / 1000;
    const count = this.#usage?.completion_tokens;
    const why = byUser ? "stopped by you" : { length: "cut at the token limit" }[this.#finish];
    return [
      ...(count === undefined ? [] : [count === 1 ? "1 token" : `${count} tokens`]),
      ...(count > 1 && seconds > 0 ? [`${((count - 1) / seconds).toFixed(1)} tokens/s`] : []),
      ...(this.#first === null ? [] : [`first after ${((this.#first - this.#begun) / 1000).toFixed(2)} s`]),
      ...this.#cached(),
      ...(why === undefined ? [] : [why]),
    ];
  }

  #cached() {
    const cached = this.#usage?.prompt_tokens_details?.cached_tokens;
    return cached ? [`${percent(cached / this.#usage.prompt_tokens)} of the prompt cached`] : [];
  }
}

/** A text whose tokens the arrow keys reach. */
function prose(label) {
  return element("div", { className: "prose", tabIndex: 0, role: "group", "aria-label": `${label}; arrow keys show tokens` });
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // cut, or not JSON: as the model wrote it
  }
}
