// What the console does beside showing pages: keeps live panels up to date, shows times in the zone of whoever looks, and takes keys.
// Without it every page tells the same.
"use strict";
(() => {
  const ANSWER_MS_MAX = 30_000; // for a renewal: behind it the server counts as away
  const WAIT_MS_MAX = 60_000; // between two tries while it is away
  const GO_MS = 1_500; // between g and the letter of a page

  const body = document.body;
  const refreshMs = Number(body.dataset.refreshMs);
  const said = document.getElementById("said");
  const say = (text) => { said.textContent = text; };
  const button = (act) => document.querySelector(`[data-act=${act}]`);

  // What somebody chose stays chosen, where the browser keeps it.
  const chosen = (name) => { try { return localStorage.getItem(`basalt.${name}`); } catch { return null; } };
  const choose = (name, value) => { try { localStorage.setItem(`basalt.${name}`, value); } catch { /* not kept, then */ } };

  // Times.
  let utc = chosen("zone") === "utc";
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
  const inUtc = (time) => time.dateTime.slice(0, 19).replace("T", " ") + " UTC";
  const show = (root) => {
    for (const time of root.querySelectorAll("time")) {
      const at = new Date(time.dateTime);
      time.title = inUtc(time);
      if (time.classList.contains("age")) time.textContent = span((Date.now() - at) / 1000);
      else if (time.classList.contains("left")) time.textContent = span((at - Date.now()) / 1000);
      else time.textContent = utc ? inUtc(time) : at.toLocaleString("sv-SE"); // as UTC is written
    }
    for (const zone of root.querySelectorAll("[data-zone]")) zone.textContent = utc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
  };
  const switchZone = () => {
    utc = !utc;
    choose("zone", utc ? "utc" : "local");
    show(document);
    say(utc ? "Times are in UTC." : "Times are in your own zone.");
  };
  setInterval(() => {
    if (document.hidden) return;
    for (const time of document.querySelectorAll("time.age")) time.textContent = span((Date.now() - new Date(time.dateTime)) / 1000);
    for (const time of document.querySelectorAll("time.left")) time.textContent = span((new Date(time.dateTime) - Date.now()) / 1000);
  }, 1000);

  // Live panels: those that changed take the places of the old ones. What was open or had the focus is so again.
  const live = () => [...document.querySelectorAll("[data-live]")];
  const shown = new Map(); // what the server last said of each panel, by its id
  const same = (element) => (element.id ? `#${CSS.escape(element.id)}` : element.hasAttribute("href") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]` : element.localName);
  const inUse = (panel) => {
    const selection = getSelection();
    const selects = !selection.isCollapsed && panel.contains(selection.anchorNode);
    return selects || (panel.contains(document.activeElement) && document.activeElement.matches("input, textarea, select"));
  };
  const put = (panel, fresh) => {
    const html = fresh.outerHTML;
    if (shown.get(panel.id) === html || inUse(panel)) return;
    shown.set(panel.id, html);
    const active = document.activeElement;
    const at = panel.contains(active) ? [...panel.querySelectorAll(same(active))].indexOf(active) : -1;
    const open = [...panel.querySelectorAll("details")].map((each) => each.open);
    fresh.querySelectorAll("details").forEach((each, place) => { each.open = Boolean(open[place]); });
    const scrolled = panel.scrollLeft;
    show(fresh);
    panel.replaceWith(fresh);
    fresh.scrollLeft = scrolled;
    if (at < 0) return;
    const alike = fresh.querySelectorAll(same(active));
    const again = alike[Math.min(at, alike.length - 1)] || fresh;
    if (again === fresh) fresh.tabIndex = -1;
    if (panel.querySelector("[aria-selected=true]") && again.closest("tr")) again.closest("tr").setAttribute("aria-selected", "true");
    again.focus({ preventScroll: true });
  };

  // A server that is away, or wants to be left alone, is asked less and less often; the page says that it is as it was.
  const stale = document.getElementById("stale");
  let since = new Date();
  let backOffMs = refreshMs;
  let waitMs = refreshMs;
  const isStale = (...told) => {
    const first = stale.hidden;
    turn = -1;
    stale.replaceChildren(`This page is as it was at ${since.toLocaleTimeString("sv-SE")}: `, ...told);
    stale.hidden = false;
    for (const panel of live()) panel.dataset.stale = "true";
    if (first) say(stale.textContent);
  };
  const isFresh = () => {
    since = new Date();
    backOffMs = waitMs = refreshMs;
    if (stale.hidden) return;
    stale.hidden = true;
    for (const panel of live()) delete panel.dataset.stale;
    say("The page is up to date again.");
  };
  const link = (href, text) => Object.assign(document.createElement("a"), { href, textContent: text });
  const told = async (reply) => {
    if (reply.redirected) return ["your login is over. ", link(`/console/login?next=${encodeURIComponent(location.pathname + location.search)}`, "Sign in")];
    const type = reply.headers.get("content-type") || "";
    if (type.startsWith("application/problem+json")) return [(await reply.json()).detail];
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    const sentence = page.querySelector("[data-told]");
    for (const each of sentence ? sentence.querySelectorAll("a") : []) each.search = location.search; // and not the one of these panels
    return sentence ? [...sentence.childNodes] : [`the server answers ${reply.status}.`];
  };
  let turn = 0; // what changes slowly is asked for every so many turns; after a while away everything is
  const renew = async () => {
    turn += 1;
    const due = live().filter((panel) => turn % Number(panel.dataset.every || 1) === 0);
    if (!due.length) return;
    const url = new URL(location.href);
    url.searchParams.set("panel", due.map((panel) => panel.dataset.live).join(","));
    let reply = null;
    try {
      reply = await fetch(url, { headers: { accept: "text/html" }, signal: AbortSignal.timeout(ANSWER_MS_MAX) });
      if (reply.ok && !reply.redirected) {
        const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
        for (const panel of live()) {
          const found = fresh.getElementById(panel.id);
          if (found) put(panel, found);
        }
        isFresh();
        return;
      }
      isStale(...await told(reply));
    } catch {
      isStale("the server does not answer.");
    }
    const asked = Number(reply && reply.headers.get("retry-after")) * 1000 || 0;
    backOffMs = Math.min(2 * backOffMs, WAIT_MS_MAX);
    waitMs = Math.max(asked, backOffMs) * (1 + Math.random() / 5); // not all at once when it is back
  };

  let held = false;
  let timer = 0;
  const tick = async () => {
    clearTimeout(timer);
    timer = -1; // one at a time
    if (!held && !document.hidden && live().length) await renew();
    timer = setTimeout(tick, waitMs);
  };
  const hold = () => {
    held = !held;
    button("hold").setAttribute("aria-pressed", String(held));
    say(held ? "The page is held as it is." : "The page goes on.");
    turn = -1;
    if (!held && timer !== -1) tick();
  };

  // Keys.
  const help = document.getElementById("help");
  const on = document.getElementById("keys-on");
  let goes = 0; // until when a letter behind g counts
  const step = (by) => {
    const all = [...document.querySelectorAll("table[data-rows] tbody tr")];
    if (!all.length) return;
    const at = all.findIndex((row) => row.getAttribute("aria-selected") === "true");
    const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
    all.forEach((row) => row.removeAttribute("aria-selected"));
    next.setAttribute("aria-selected", "true");
    const target = next.querySelector("a") || next;
    if (target === next) next.tabIndex = -1;
    target.focus();
  };
  const copyLine = async () => {
    const panel = document.activeElement.closest(".panel") || document.querySelector(".panel");
    const line = panel && (panel.querySelector("[data-copy=cli]") || panel.querySelector("[data-copy]"));
    if (!line) return say("There is no command on this page.");
    try {
      await navigator.clipboard.writeText(line.textContent);
      say("Copied: " + line.textContent);
    } catch { // without TLS a browser lets no page write there
      const closed = line.closest("details");
      if (closed) closed.open = true;
      getSelection().selectAllChildren(line);
      say("The command is selected: copy it as you copy text.");
    }
  };
  const search = () => {
    const field = document.querySelector("input[type=search]");
    if (field) field.focus();
    else say("There is nothing to search on this page.");
  };
  const keys = {
    "/": search,
    "?": () => help.showModal(),
    ".": hold,
    u: switchZone,
    j: () => step(1),
    k: () => step(-1),
    c: copyLine,
    g: () => { goes = Date.now() + GO_MS; },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.matches("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (!on.checked) return;
    if (goes > Date.now()) {
      goes = 0;
      const there = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (there) { event.preventDefault(); there.click(); }
      return;
    }
    const act = Object.hasOwn(keys, event.key) && keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  on.checked = chosen("keys") !== "off";
  on.addEventListener("change", () => choose("keys", on.checked ? "on" : "off"));

  // A filter's address has what was filled in, and nothing else.
  document.addEventListener("formdata", (event) => {
    if (event.target.method !== "get") return;
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });

  for (const each of document.querySelectorAll("[data-script]")) each.hidden = false;
  button("help").addEventListener("click", () => help.showModal());
  button("hold").addEventListener("click", hold);
  button("zone").addEventListener("click", switchZone);
  show(document);
  if (refreshMs > 0 && live().length) {
    for (const panel of live()) shown.set(panel.id, "");
    document.addEventListener("visibilitychange", () => { turn = -1; if (!document.hidden && timer !== -1) tick(); });
    timer = setTimeout(tick, refreshMs);
  } else button("hold").hidden = true;
})();
