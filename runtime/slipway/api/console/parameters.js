// The parameters of requests. A field that is left empty is not sent: the model's own default holds.

import { byId, jsonOf, objectTo } from "./dom.js";

const FORMS = {
  text: () => ({}),
  json_object: () => ({ response_format: { type: "json_object" } }),
  json_schema: (field) => ({
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: jsonOf(field) } },
  }),
  regex: (field) => ({ guided_regex: field.value }),
};
const WRITTEN = {
  json_schema: ["JSON schema", '{\n  "type": "object",\n  "properties": {"city": {"type": "string"}},\n  "required": ["city"]\n}'],
  regex: ["Regular expression", "(yes|no)"],
};

export class Parameters {
  #form = byId("parameters");
  #kind = byId("form");
  #rule = byId("rule");
  #drafts = {};

  constructor() {
    this.#kind.addEventListener("change", () => this.#showRule());
    this.#rule.addEventListener("input", () => {
      this.#drafts[this.#kind.value] = this.#rule.value;
      objectTo(this.#rule, "");
    });
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    byId("shades").addEventListener("change", () => this.#showShades());
    byId("defaults").addEventListener("click", () => {
      this.#form.reset();
      this.#drafts = {};
      this.#showRule();
      this.#showShades();
    });
  }

  /** The fields of a request, the system prompt among them; null where one cannot be sent. */
  read() {
    const fields = { system: byId("system").value, ...FORMS[this.#kind.value](this.#rule) };
    const keywords = byId("keywords");
    if (keywords.value.trim()) fields.chat_template_kwargs = jsonOf(keywords);
    else objectTo(keywords, "");
    if (!this.#form.checkValidity()) return null;
    for (const field of this.#form.querySelectorAll("input[type=number]")) {
      if (field.value !== "") fields[field.name] = field.valueAsNumber;
    }
    const stop = byId("stop").value.split("\n").filter((line) => line !== "");
    if (stop.length) fields.stop = stop;
    if (fields.top_logprobs !== undefined) fields.logprobs = true;
    return fields;
  }

  /** Lead the user to the field that is wrong. */
  complain() {
    this.#form.reportValidity();
  }

  #showShades() {
    document.body.classList.toggle("shaded", byId("shades").checked);
  }

  #showRule() {
    const written = WRITTEN[this.#kind.value];
    byId("rule-row").hidden = this.#rule.disabled = written === undefined;
    objectTo(this.#rule, "");
    if (written === undefined) return;
    [byId("rule-label").textContent, this.#rule.value] = [written[0], this.#drafts[this.#kind.value] ?? written[1]];
  }
}
