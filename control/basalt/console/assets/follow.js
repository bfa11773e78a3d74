// Follows a topic: draws the messages of an event stream, as many as a page holds well, and says how many it does not show.
// Everything of a message is set as text.
"use strict";
(() => {
  const panel = document.getElementById("follow");
  if (!panel) return;
  const ROWS_MAX = 200; // on the page; older ones go
  const WAITING_MAX = 50; // while it is paused: of the rest, the number is kept
  const RETRY_MS = 5000;
  const rows = document.getElementById("follow-rows");
  const state = document.getElementById("follow-state");
  const leftOut = document.getElementById("follow-left");
  const pause = panel.querySelector("[data-act=pause]");
  let source = null;
  let last = "";
  let left = 0;
  let drawn = 0;
  let paused = false;
  let waiting = [];

  const count = (number) => number.toLocaleString("en");
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  const tell = () => { leftOut.textContent = `${count(drawn)} shown${left ? `, ${count(left)} not shown` : ""}${paused && waiting.length ? `, ${count(waiting.length)} wait` : ""}.`; };

  const cell = (row, kind, child) => {
    const made = row.appendChild(document.createElement(kind));
    made.append(child);
    return made;
  };
  const draw = (message) => {
    const row = document.createElement("tr");
    const time = document.createElement("time");
    time.dateTime = new Date(message.ms).toISOString();
    time.textContent = new Date(message.ms).toLocaleTimeString([], { timeStyle: "medium" });
    cell(row, "td", time);
    const link = document.createElement("a");
    link.href = `${panel.dataset.messages}/${message.id}`;
    link.textContent = message.id;
    cell(row, "th", link).scope = "row";
    cell(row, "td", message.key);
    const payload = document.createElement("pre");
    payload.textContent = message.text + (message.cut ? "…" : "");
    cell(row, "td", payload);
    return row;
  };
  const show = (messages) => {
    const made = document.createDocumentFragment();
    for (const message of messages) made.prepend(draw(message));
    rows.prepend(made);
    while (rows.rows.length > ROWS_MAX) rows.deleteRow(-1);
    drawn += messages.length;
    tell();
  };

  const open = () => {
    const url = new URL(panel.dataset.follow, location.href);
    if (last) url.searchParams.set("after", last);
    source = new EventSource(url);
    source.onopen = () => say("Following.");
    source.addEventListener("rows", (event) => {
      last = event.lastEventId;
      const messages = JSON.parse(event.data);
      if (!paused) { show(messages); return; }
      waiting.push(...messages);
      left += Math.max(0, waiting.length - WAITING_MAX);
      waiting = waiting.slice(-WAITING_MAX);
      tell();
    });
    source.addEventListener("left", (event) => {
      last = event.lastEventId;
      left += JSON.parse(event.data).count;
      tell();
    });
    source.addEventListener("end", (event) => {
      const problem = JSON.parse(event.data) || {};
      source.close();
      say(`It is over: ${problem.detail || "the server has ended it"} ${problem.hint || ""}`);
      pause.hidden = true;
    });
    source.onerror = () => {
      say("The server does not answer; this page tries again.");
      if (source.readyState === EventSource.CLOSED) setTimeout(open, RETRY_MS);
    };
  };
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    say(paused ? "Paused." : "Following.");
    const kept = waiting;
    waiting = [];
    if (!paused) show(kept);
    tell();
  });
  addEventListener("pagehide", () => source.close());
  open();
})();
