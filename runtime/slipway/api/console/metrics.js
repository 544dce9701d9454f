// What the server says of itself at /metrics, each second while someone looks.

import { Chart } from "./chart.js";
import { byId, element } from "./dom.js";
import { request } from "./server.js";
import { percent } from "./tokens.js";

const EVERY = 1000; // milliseconds
const LENGTH = 60; // values of a chart: a minute

const whole = (value) => value.toFixed(0);
const rate = (value) => `${value.toFixed(value < 99.95 ? 1 : 0)} /s`;
const CARDS = [
  { title: "Running requests", of: (now) => now("vllm:num_requests_running"), written: whole, most: 4, grows: true },
  { title: "Waiting requests", of: (now) => now("vllm:num_requests_waiting"), written: whole, most: 4, grows: true },
  { title: "Generated tokens", of: perSecond("vllm:generation_tokens_total"), written: rate, most: 10, grows: true },
  { title: "Prompt tokens", of: perSecond("vllm:prompt_tokens_total"), written: rate, most: 10, grows: true },
  { title: "KV cache in use", of: (now) => now("vllm:gpu_cache_usage_perc", true), written: percent, most: 1 },
  { title: "Prefix hits, last minute", of: hitRate, written: percent, most: 1 },
];

export class Metrics {
  #samples = [];
  #timer = 0;
  #cards = CARDS.map((card) => new Card(card));

  constructor() {
    byId("cards").append(...this.#cards.map((card) => card.view));
    new IntersectionObserver(() => this.#follow()).observe(byId("cards"));
    document.addEventListener("visibilitychange", () => this.#follow());
  }

  /** Ask while the panel can be seen, and not else. */
  #follow() {
    clearTimeout(this.#timer);
    if (document.visibilityState === "visible" && byId("cards").checkVisibility()) this.#ask();
  }

  async #ask() {
    const begun = performance.now();
    try {
      const text = await (await request("metrics")).text();
      this.#samples.push({ at: begun / 1000, values: samplesOf(text) });
      this.#samples = this.#samples.slice(-LENGTH - 1);
      for (const card of this.#cards) card.show(this.#samples);
      byId("metrics-note").textContent = "";
    } catch (error) {
      byId("metrics-note").textContent = error.message;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#follow(), EVERY - (performance.now() - begun));
  }
}

class Card {
  #values = [];
  #value = element("span", { className: "value" }, "–");

  constructor({ title, of, written, most, grows }) {
    Object.assign(this, { of, written });
    this.chart = new Chart(LENGTH, most, grows);
    const label = element("span", { className: "label" }, title);
    this.view = element("div", { className: "card", role: "group", "aria-label": title }, label, this.#value, this.chart.view);
  }

  show(samples) {
    const now = (name, mean) => read(samples.at(-1), name, mean);
    const value = this.of(now, samples);
    this.#value.textContent = value === null ? "–" : this.written(value);
    this.#values = [...this.#values, value].slice(-LENGTH);
    this.chart.draw(this.#values);
  }
}

/** The samples of each name, in Prometheus' text format; labels tell engines and models apart. */
function samplesOf(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const name = line.slice(0, line.search(/[{ ]/));
    const value = Number(line.slice(line.lastIndexOf(" ") + 1));
    found.set(name, [...(found.get(name) ?? []), value]);
  }
  return found;
}

/** The sum or the mean of a name's samples; null where there is none. */
function read(sample, name, mean = false) {
  const values = sample.values.get(name);
  if (values === undefined) return null;
  return values.reduce((sum, value) => sum + value, 0) / (mean ? values.length : 1);
}

/** How much a counter grew between two samples; null where it began anew. */
function growth(from, to, name) {
  const [before, after] = [read(from, name), read(to, name)];
  return before === null || after === null || after < before ? null : after - before;
}

function perSecond(name) {
  return (now, samples) => {
    const [last, newest] = samples.slice(-2);
    if (newest === undefined) return null;
    const grown = growth(last, newest, name);
    return grown === null ? null : grown / (newest.at - last.at);
  };
}

function hitRate(now, samples) {
  const [first, last] = [samples[0], samples.at(-1)];
  const asked = growth(first, last, "vllm:gpu_prefix_cache_queries_total");
  return asked ? growth(first, last, "vllm:gpu_prefix_cache_hits_total") / asked : null;
}
