// The console: what the workers do, once a second, and a chat that streams.

const $ = (id) => document.getElementById(id);
const POLL_MS = 1000;
const ROLES = ["prefill", "decode", "mixed"];
const conversation = [];
let stopping = null;
let counted = null;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function headers() {
  const key = $("key").value;
  return key ? { authorization: `Bearer ${key}` } : {};
}

function percent(share) {
  return `${Math.min(100, Math.max(0, share * 100)).toFixed(1)}%`;
}

// ------------------------------------------------------------------------------------------------------------- workers

function bar(worker) {
  const made = element("div", "bar");
  made.setAttribute("role", "img");
  const held = worker.num_slots ? worker.held_slots / worker.num_slots : 0;
  made.setAttribute("aria-label", `${percent(held)} held, peak ${percent(worker.admitted_peak_ratio)}`);
  for (const [kind, share] of [["peak", worker.admitted_peak_ratio], ["held", held], ["demand", worker.demand_ratio]]) {
    const part = element("i", kind);
    part.style.width = percent(share);
    made.append(part);
  }
  return made;
}

function card(worker) {
  const made = element("div", "worker");
  const state = worker.draining ? "draining" : worker.ready ? "ready" : "not ready";
  const head = element("div", "row");
  head.append(element("span", "name", worker.worker_id), element("span", worker.ready ? "ready" : "waiting", state));
  const peak = `peak ${(worker.admitted_peak_ratio * 100).toFixed(0)}%, demand ${(worker.demand_ratio * 100).toFixed(0)}%`;
  const slots = `${worker.held_slots.toLocaleString()} of ${worker.num_slots.toLocaleString()} slots`;
  const work = `${worker.running_requests} running, ${worker.queued_requests} waiting`;
  made.append(head, bar(worker), element("div", "facts", `${work} · ${slots} · ${peak}`));
  return made;
}

function showWorkers(workers) {
  const columns = ROLES.map((role) => [role, workers.filter((worker) => worker.role === role)]);
  $("workers").replaceChildren(
    ...columns.filter(([, members]) => members.length).map(([role, members]) => {
      const column = element("div");
      column.append(element("h3", "", role), ...members.map(card));
      return column;
    }),
  );
  if (!workers.length) $("workers").append(element("p", "facts", "No worker has been seen yet."));
}

function rate(tokens) {
  const before = counted;
  counted = { tokens, at: performance.now() };
  if (!before || tokens < before.tokens) return 0;
  return Math.round((tokens - before.tokens) / ((counted.at - before.at) / 1000));
}

function showStages(stages, tokensPerSecond) {
  $("stages").replaceChildren(
    ...[...Object.entries(stages), ["tokens/s", tokensPerSecond.toLocaleString()]].map(([name, count]) => {
      const item = element("li");
      item.append(element("strong", "", count), element("span", "", name));
      return item;
    }),
  );
}

function showModels(models) {
  const chosen = $("model").value;
  const known = [...$("model").options].map((option) => option.value);
  if (known.join("\n") === models.join("\n")) return;
  $("model").replaceChildren(...models.map((name) => new Option(name, name, false, name === chosen)));
}

function say(text, isBad) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", isBad);
}

async function poll() {
  try {
    const answer = await fetch("/console/state", { headers: headers() });
    $("key-field").hidden = $("key-field").hidden && answer.status !== 401;
    if (!answer.ok) throw new Error(answer.status === 401 ? "an API key is needed" : `status ${answer.status}`);
    const state = await answer.json();
    showStages(state.stages, rate(state.output_tokens));
    showWorkers(state.workers);
    showModels(state.models);
    say(`${state.num_pairs} ${state.num_pairs === 1 ? "pair takes" : "pairs take"} requests · ${state.version}`, false);
  } catch (error) {
    say(`No answer: ${error.message}`, true);
  }
  setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
}

// ---------------------------------------------------------------------------------------------------------------- chat

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function figures(usage, begun, first) {
  const now = performance.now();
  const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;
  const tokens = `${usage.prompt_tokens} prompt tokens, ${usage.prompt_tokens_details.cached_tokens} of them cached`;
  const speed = first && now > first ? ` at ${((usage.completion_tokens - 1) / ((now - first) / 1000)).toFixed(0)}/s` : "";
  return `${tokens} · first token after ${seconds((first || now) - begun)} · ${usage.completion_tokens} tokens${speed}`;
}

async function answerInto(turn, signal) {
  const wanted = { stream: true, stream_options: { include_usage: true } };
  const body = JSON.stringify({ model: $("model").value, messages: conversation, ...wanted });
  const begun = performance.now();
  let first = 0;
  const init = { method: "POST", body, signal, headers: { "content-type": "application/json", ...headers() } };
  const answer = await fetch("/v1/chat/completions", init);
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const thoughts = turn.appendChild(element("span", "thoughts"));
  const text = turn.appendChild(element("span"));
  for await (const event of events(answer)) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) turn.append(element("div", "facts", figures(event.usage, begun, first)));
    const delta = event.choices[0]?.delta ?? {};
    if (delta.content || delta.reasoning_content) first ||= performance.now();
    thoughts.append(delta.reasoning_content ?? "");
    text.append(delta.content ?? "");
    $("log").scrollTop = $("log").scrollHeight;
  }
  return text.textContent;
}

async function ask(content) {
  conversation.push({ role: "user", content });
  $("log").append(element("div", "turn user", content));
  const turn = $("log").appendChild(element("div", "turn assistant"));
  stopping = new AbortController();
  $("send").hidden = true;
  $("stop").hidden = false;
  $("clear").hidden = true;
  try {
    conversation.push({ role: "assistant", content: await answerInto(turn, stopping.signal) });
  } catch (error) {
    conversation.pop();
    turn.append(element("span", "error", error.name === "AbortError" ? " (stopped)" : ` ${error.message}`));
  } finally {
    $("send").hidden = false;
    $("stop").hidden = true;
    $("clear").hidden = false;
    $("log").scrollTop = $("log").scrollHeight;
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const content = $("message").value.trim();
  if (!content || !$("stop").hidden) return;
  $("message").value = "";
  ask(content);
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => stopping?.abort());
$("clear").addEventListener("click", () => {
  conversation.length = 0;
  $("log").replaceChildren();
  $("clear").hidden = true;
  $("message").focus();
});
poll();
