// The tools that requests offer, as OpenAI's JSON.

import { byId, element, jsonOf, objectTo } from "./dom.js";

const CHOICES = ["auto", "required", "none"];

export class Tools {
  #form = byId("tools");
  #used = byId("tools-used");
  #list = byId("tools-list");
  #choice = byId("tool-choice");

  constructor() {
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#used.addEventListener("change", () => this.#check());
    this.#list.addEventListener("input", () => this.#check());
    this.#check();
  }

  /** The fields of a request; null where the list cannot be sent. A call that was forced and has its
   * result is followed by an answer, so that `continuing` turns force none. */
  read(continuing) {
    if (!this.#used.checked) return {};
    const tools = this.#check();
    if (tools === null) return null;
    const chosen = this.#choice.value;
    const forced = chosen !== "auto" && continuing ? "none" : chosen;
    const named = { type: "function", function: { name: forced } };
    return {
      tools,
      tool_choice: CHOICES.includes(forced) ? forced : named,
      ...(byId("one-call").checked ? { parallel_tool_calls: false } : {}),
    };
  }

  complain() {
    this.#form.reportValidity();
  }

  /** The tools, and the choices that they leave; null and an objection where they are none. */
  #check() {
    const tools = jsonOf(this.#list);
    if (tools === undefined) return this.#unlessUsed();
    if (!Array.isArray(tools) || !tools.length || !tools.every((tool) => typeof tool?.function?.name === "string")) {
      objectTo(this.#list, 'This should be a list of {"type": "function", "function": {"name": …}}.');
      return this.#unlessUsed();
    }
    const chosen = this.#choice.value;
    const names = tools.map((tool) => tool.function.name).filter((name) => !CHOICES.includes(name));
    const options = [...CHOICES, ...names].map((name) => {
      return element("option", { value: name }, CHOICES.includes(name) ? name : `call ${name}`);
    });
    this.#choice.replaceChildren(...options);
    this.#choice.value = [...CHOICES, ...names].includes(chosen) ? chosen : "auto";
    return tools;
  }

  #unlessUsed() {
    if (!this.#used.checked) objectTo(this.#list, "");
    return null;
  }
}
