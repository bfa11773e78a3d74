// What the console does beside showing pages: keeps live panels up to date, shows times in the zone of whoever looks, and takes keys.
// Without it every page tells the same.
"use strict";
(() => {
  const refreshMs = Number(document.body.dataset.refreshMs);
  const said = document.getElementById("said");
  const say = (text) => { said.textContent = text; };
  let held = false;
  let utc = false;

  // Times.
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const span = (seconds) => {
    if (seconds < 1) return "0 s";
    const parts = [];
    for (const [unit, name] of units) {
      const count = Math.floor(seconds / unit);
      seconds -= count * unit;
      if (count || parts.length) parts.push(count ? `${count} ${name}` : "");
      if (parts.length === 2) break;
    }
    return parts.filter(Boolean).join(" ");
  };
  const show = (root) => {
    for (const time of root.querySelectorAll("time")) {
      const at = new Date(time.dateTime);
      time.title = time.dateTime;
      if (time.classList.contains("age")) time.textContent = span((Date.now() - at) / 1000);
      else if (time.classList.contains("left")) time.textContent = span((at - Date.now()) / 1000);
      else time.textContent = utc ? time.dateTime.slice(0, 19).replace("T", " ") + " UTC" : at.toLocaleString([], { dateStyle: "short", timeStyle: "medium" });
    }
    for (const zone of root.querySelectorAll("[data-zone]")) zone.textContent = utc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
  };
  setInterval(() => {
    for (const time of document.querySelectorAll("time.age")) time.textContent = span((Date.now() - new Date(time.dateTime)) / 1000);
    for (const time of document.querySelectorAll("time.left")) time.textContent = span((new Date(time.dateTime) - Date.now()) / 1000);
  }, 1000);

  // Live panels: each is asked for anew and takes its own place. What is open or has the focus stays so.
  const renew = async (panel) => {
    const url = new URL(location.href);
    url.searchParams.set("panel", panel.dataset.live);
    const reply = await fetch(url, { headers: { accept: "text/html" } }).catch(() => null);
    if (reply === null || !reply.ok || reply.redirected) {
      panel.dataset.stale = "true";
      say(reply === null ? "The server does not answer; this page tries again." : "The page could not be renewed.");
      return;
    }
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html").getElementById(panel.id);
    if (fresh === null || panel.contains(document.activeElement) || panel.querySelector("details[open]")) return;
    show(fresh);
    panel.replaceWith(fresh);
  };
  let turn = 0;
  const isDue = (panel) => turn % Number(panel.dataset.every || 1) === 0;
  const tick = async () => {
    turn += 1;
    if (!held && !document.hidden) await Promise.all([...document.querySelectorAll("[data-live]")].filter(isDue).map(renew));
    setTimeout(tick, refreshMs);
  };

  // Keys.
  let going = false;
  const rows = () => [...document.querySelectorAll("table[data-rows] tbody tr")];
  const step = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.getAttribute("aria-selected") === "true");
    const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
    all.forEach((row) => row.removeAttribute("aria-selected"));
    next.setAttribute("aria-selected", "true");
    (next.querySelector("a") || next).focus();
  };
  const copyLine = async () => {
    const panel = document.activeElement.closest(".panel") || document.querySelector(".panel");
    const line = panel && (panel.querySelector("[data-copy=cli]") || panel.querySelector("[data-copy]"));
    if (!line) return;
    await navigator.clipboard.writeText(line.textContent);
    say("Copied: " + line.textContent);
  };
  const keys = {
    "/": () => { const search = document.querySelector("input[type=search]"); if (search) search.focus(); },
    "?": () => document.getElementById("help").showModal(),
    ".": () => { held = !held; say(held ? "The page is held as it is." : "The page goes on."); },
    u: () => { utc = !utc; show(document); },
    j: () => step(1),
    k: () => step(-1),
    c: copyLine,
    g: () => { going = true; setTimeout(() => { going = false; }, 1500); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    if (going) {
      going = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  const help = document.querySelector("[data-act=help]");
  if (help) { help.hidden = false; help.addEventListener("click", () => keys["?"]()); }
  show(document);
  if (refreshMs > 0) setTimeout(tick, refreshMs);
})();
