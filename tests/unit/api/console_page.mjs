// The console's script in a page of stand-ins: node console_page.mjs BASE_URL SCRIPT -> what a person would see, as JSON.

import { readFileSync } from "node:fs";

const [base, script] = process.argv.slice(2);

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], className: "", value: "", hidden: false, style: {}, handlers: {} });
    this.classList = { toggle: (name, on) => { this.isBad = on; } };
  }
  get options() { return this.children; }
  get textContent() { return this.children.map((one) => (typeof one === "string" ? one : one.textContent)).join(""); }
  set textContent(text) { this.children = [String(text)]; }
  append(...parts) { this.children.push(...parts.map((one) => (one instanceof Element ? one : String(one)))); }
  appendChild(child) { this.children.push(child); return child; }
  replaceChildren(...parts) {
    this.children = parts;
    if (this.tag === "model" && parts.length) this.value = parts[0].value;
  }
  setAttribute() {}
  addEventListener(kind, handler) { this.handlers[kind] = handler; }
  requestSubmit() { this.handlers.submit({ preventDefault() {} }); }
  find(name) { return this.children.flatMap((one) => (one instanceof Element ? [...(one.className === name ? [one] : []), ...one.find(name)] : [])); }
}

const known = {};
globalThis.document = {
  hidden: false,
  getElementById: (id) => (known[id] ??= new Element(id)),
  createElement: (tag) => new Element(tag),
};
globalThis.Option = class extends Element {
  constructor(text, value) { super("option"); this.value = value; this.textContent = text; }
};
const $ = document.getElementById;
$("stop").hidden = true;
$("key-field").hidden = true;
const ask = globalThis.fetch;
globalThis.fetch = (path, init) => ask(base + path, init);

const until = async (holds) => {
  for (let i = 0; i < 500 && !holds(); i += 1) await new Promise((done) => setTimeout(done, 10));
};
await import(`data:text/javascript,${encodeURIComponent(readFileSync(script, "utf8"))}`);
await until(() => $("workers").children.length && $("model").value);
$("message").value = "Hello";
$("message").handlers.keydown({ key: "Enter", shiftKey: false, preventDefault() {} });
const wasStoppable = !$("stop").hidden;
await until(() => $("stop").hidden);
const [held] = $("workers").find("held");
console.log(JSON.stringify({
  status: $("status").textContent,
  bad: $("status").isBad,
  stages: $("stages").textContent,
  workers: $("workers").textContent,
  heldWidth: held?.style.width,
  turns: $("log").children.map((turn) => turn.textContent),
  wasStoppable,
}));
process.exit(0);
