// Puts the panels together: tabs, the key, whether the server is ready, and what a request is made of.

import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { Metrics } from "./metrics.js";
import { Models } from "./models.js";
import { Parameters } from "./parameters.js";
import { key, notices, readiness } from "./server.js";
import { Tools } from "./tools.js";

const PHASES = { away: "Unreachable", draining: "Shutting down", dead: "Ended", download: "Downloading", load: "Loading", warmup: "Warming up" };
const AGAIN = 1000; // milliseconds between two questions whether it is ready

const [parameters, tools, models] = [new Parameters(), new Tools(), new Models()];
const tabs = [...document.querySelectorAll("[role=tab]")];

new Chat((continuing) => {
  const panels = { parameters: parameters.read(), tools: tools.read(continuing) };
  for (const [name, panel] of [["parameters", parameters], ["tools", tools]]) {
    if (panels[name] === null) {
      open(name);
      panel.complain();
      return null;
    }
  }
  return {
    model: models.chosen,
    stream: true,
    stream_options: { include_usage: true },
    ...panels.parameters,
    ...panels.tools,
  };
});
new Metrics();

/** Show the panel of this name; a narrow window shows it over the conversation. */
function open(name) {
  document.body.classList.add("panel-open");
  byId("toggle").setAttribute("aria-expanded", "true");
  for (const tab of tabs) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
}

for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => open(tab.id.slice("tab-".length)));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const next = tabs.at((index + step) % tabs.length);
    next.focus();
    next.click();
  });
}

byId("toggle").addEventListener("click", (event) => {
  const opened = document.body.classList.toggle("panel-open");
  event.currentTarget.setAttribute("aria-expanded", String(opened));
});

/** Wait until the server is ready, then read its models; one wait at a time. */
let waiting = false;
async function connect() {
  if (waiting) return;
  waiting = true;
  for (;;) {
    const state = await readiness();
    show(state);
    if (state.ready) break;
    await new Promise((resolve) => setTimeout(resolve, AGAIN));
  }
  waiting = false;
  await models.load().catch(() => {}); // what went wrong has been noticed: a key, or trouble
}

function show({ ready, phase, done, total }) {
  byId("state").textContent = ready ? "Ready" : `${PHASES[phase] ?? "Starting"}${extent(phase, done, total)}`;
  byId("state").className = ready ? "state ready" : "state";
}

/** How far a phase is; of one that drains, `total` is the number of open requests. */
function extent(phase, done, total) {
  if (phase === "away") return "";
  if (!total) return " …";
  if (phase === "draining") return `: ${total} ${total === 1 ? "request is" : "requests are"} open`;
  return ` ${Math.floor((100 * done) / total)} %`;
}

const dialog = byId("key-dialog");
function askForKey(why) {
  byId("key-note").textContent = why;
  byId("key").value = key.get();
  if (!dialog.open) dialog.showModal();
}

byId("key-button").addEventListener("click", () => askForKey(""));
byId("key-cancel").addEventListener("click", () => dialog.close());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  dialog.close();
  connect();
});
notices.addEventListener("unauthorized", ({ detail }) => {
  askForKey(key.get() ? detail : "This server answers only those who have its key.");
});
notices.addEventListener("trouble", () => connect());

connect();
