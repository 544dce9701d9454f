// Tokens and their probabilities: which token a piece of text came from, its colour, and what is shown of it.

import { byId, element } from "./dom.js";

const entries = new WeakMap(); // what the server said of the token of each span
const SHADES = [0.9, 0.6, 0.3, 0.1]; // from sure to unsure; below the last one a fifth shade

/** Finds the text of an answer in its tokens: markers, stop strings and ends have tokens and no text. */
export class Tokens {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #known = [];
  #ends = [];
  #text = "";
  #cursor = 0;
  #next = 0;

  /** Take the entries of `logprobs.content`. A character of several tokens belongs to the last of them. */
  learn(content) {
    for (const entry of content) {
      this.#text += this.#decoder.decode(Uint8Array.from(entry.bytes ?? []), { stream: true });
      this.#known.push(entry);
      this.#ends.push(this.#text.length);
    }
  }

  /** Spans for text that arrived after its tokens were learnt; plain text where they do not hold it. */
  spans(text) {
    const last = this.#text.length - text.length;
    const ends = last >= this.#cursor && this.#text.endsWith(text);
    const begin = ends ? last : this.#text.indexOf(text, this.#cursor);
    if (begin < 0) return [document.createTextNode(text)];
    const made = [];
    for (let at = begin; at < begin + text.length; ) {
      while (this.#ends[this.#next] <= at) this.#next += 1;
      const end = Math.min(this.#ends[this.#next], begin + text.length);
      made.push(span(this.#text.slice(at, end), this.#known[this.#next]));
      at = end;
    }
    this.#cursor = begin + text.length;
    return made;
  }
}

function span(text, entry) {
  const probability = Math.exp(entry.logprob);
  const shade = SHADES.findIndex((bound) => probability >= bound);
  const made = element("span", { className: `token shade-${shade < 0 ? SHADES.length : shade}` }, text);
  entries.set(made, entry);
  return made;
}

/** Shows the probabilities of the token under the pointer, or of the one that arrow keys reach in a text. */
export function watchTokens(host) {
  const card = byId("probabilities");
  let shown = null;

  function show(token) {
    if (token === shown) return;
    shown?.classList.remove("shown");
    shown = token;
    card.hidden = token === null;
    if (token === null) return;
    token.classList.add("shown");
    card.replaceChildren(...rows(entries.get(token)));
    place(card, token.getClientRects()[0], host.getBoundingClientRect().top);
  }

  host.addEventListener("pointerover", (event) => show(event.target.closest(".token")));
  host.addEventListener("pointerleave", () => show(null));
  host.addEventListener("scroll", () => show(null), { passive: true });
  host.addEventListener("focusout", () => show(null));
  host.addEventListener("keydown", (event) => {
    if (event.key === "Escape") show(null);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined || !event.target.matches(".prose")) return;
    event.preventDefault();
    const all = [...event.target.querySelectorAll(".token")];
    const at = all.indexOf(shown);
    show(all.at(at < 0 ? (step > 0 ? 0 : -1) : Math.max(0, Math.min(all.length - 1, at + step))) ?? null);
  });
}

/** The token and the likeliest in its place, the drawn one marked. */
function rows(entry) {
  const others = entry.top_logprobs.some((other) => other.token === entry.token)
    ? entry.top_logprobs
    : [...entry.top_logprobs, entry];
  const most = Math.exp(others[0].logprob);
  return others.map((other) => {
    const probability = Math.exp(other.logprob);
    const bar = element("span", { className: "bar" });
    bar.style.width = `${(100 * probability) / most}%`;
    const drawn = other.token === entry.token;
    return element(
      "span",
      { className: drawn ? "candidate drawn" : "candidate" },
      element("span", { className: "text" }, visible(other)),
      element("span", { className: "track", ariaHidden: "true" }, bar),
      element("span", { className: "share" }, percent(probability)),
    );
  });
}

/** A token as it can be seen: white space has signs. */
function visible(entry) {
  const text = entry.bytes ? new TextDecoder().decode(Uint8Array.from(entry.bytes)) : entry.token;
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

export function percent(share) {
  if (share === 0) return "0 %";
  if (share < 0.0001) return "< 0.01 %";
  return `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`;
}

/** Above a token, or below it where that would leave the text's frame; within the window. */
function place(card, token, top) {
  const gap = 8;
  const { width, height } = card.getBoundingClientRect();
  const left = Math.min(Math.max(gap, token.left), innerWidth - width - gap);
  const above = token.top - height - gap;
  card.style.left = `${left}px`;
  card.style.top = `${above > top ? above : token.bottom + gap}px`;
}
