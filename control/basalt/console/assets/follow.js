// Follows a topic: draws the messages of an event stream, as many as a page holds well, and says how many it does not show.
// Everything of a message is set as text.
"use strict";
(() => {
  const panel = document.getElementById("follow");
  if (!panel) return;
  const ROWS_MAX = 200; // on the page; older ones go
  const RETRY_MS = 5000;
  const rows = document.getElementById("follow-rows");
  const state = document.getElementById("follow-state");
  const leftOut = document.getElementById("follow-left");
  const pause = panel.querySelector("[data-act=pause]");
  let source = null;
  let timer = 0;
  let last = "";
  let left = 0;
  let drawn = 0;
  let paused = false;

  const count = (number) => number.toLocaleString("en");
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  const tell = () => { leftOut.textContent = `${count(drawn)} shown${left ? `, ${count(left)} not shown` : ""}.`; };

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
      show(JSON.parse(event.data));
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
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, RETRY_MS);
    };
  };
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    // Nothing is sent to a page that is paused: it goes on behind the last message that it has.
    clearTimeout(timer);
    source.close();
    if (paused) say("Paused."); else open();
  });
  addEventListener("pagehide", () => source.close());
  open();
})();
