// The models that are served, and which one answers.

import { byId, element } from "./dom.js";
import { json } from "./server.js";

export class Models {
  #choice = byId("model");
  #list = byId("models");

  constructor() {
    this.#choice.addEventListener("change", () => this.#mark());
  }

  get chosen() {
    return this.#choice.value;
  }

  /** Raises ServerError. */
  async load() {
    const { data } = await json("v1/models");
    const { version } = await json("version");
    const before = this.chosen;
    this.#choice.replaceChildren(...data.map(({ id }) => element("option", { value: id }, id)));
    if (data.some(({ id }) => id === before)) this.#choice.value = before;
    this.#list.replaceChildren(...data.map((model) => this.#row(model)));
    byId("version").textContent = `Slipway ${version}`;
    this.#mark();
  }

  #row(model) {
    const context = `${model.max_model_len.toLocaleString("en")} tokens of context`;
    const facts = [context, ...(model.parent ? [`adapter of ${model.parent}`] : [])];
    if (model.root !== model.id) facts.push(model.root);
    const lines = facts.map((fact) => element("span", { className: "fact" }, fact));
    const row = element("button", { type: "button", className: "model", value: model.id }, element("strong", {}, model.id), ...lines);
    row.addEventListener("click", () => {
      this.#choice.value = model.id;
      this.#mark();
    });
    return element("li", {}, row);
  }

  #mark() {
    for (const row of this.#list.querySelectorAll("button")) {
      row.setAttribute("aria-pressed", String(row.value === this.chosen));
    }
    byId("asked").textContent = this.chosen;
  }
}
