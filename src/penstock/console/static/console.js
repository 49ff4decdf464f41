// The console's own script: times in the viewer's zone, live fragments, keyboard, scheme, tour.
// Pages work without it; nothing of it is needed to read or to change anything.

const SHAPES = {
  long: { dateStyle: "medium", timeStyle: "medium" },
  short: { dateStyle: "short", timeStyle: "short" },
  clock: { timeStyle: "medium" },
};
const YEAR = 31536000;

export function localize(root = document) {
  for (const it of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(it.dateTime);
    if (Number.isNaN(moment.getTime()) || it.dataset.shown) continue;
    it.title = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" }).format(moment);
    it.textContent = new Intl.DateTimeFormat(undefined, SHAPES[it.dataset.shape] ?? SHAPES.long).format(moment);
    it.dataset.shown = "1";
  }
}

function remember(name, value) {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `${name}=${value}; Path=/; Max-Age=${YEAR}; SameSite=Lax${secure}`;
}

// --- what is live: an element with data-live is replaced by what its stream sends ---

let paused = false;
const sources = new Map();

function follow(element) {
  const source = new EventSource(element.dataset.live);
  sources.set(element, source);
  source.addEventListener("fragment", (event) => {
    if (paused || element.contains(document.activeElement)) return;
    element.innerHTML = event.data;
    element.classList.remove("stale");
    localize(element);
  });
  source.addEventListener("ended", () => { source.close(); location.reload(); });
  source.addEventListener("trouble", () => element.classList.add("stale"));
  source.onerror = () => element.classList.add("stale");
}

function pause() {
  paused = !paused;
  const button = document.querySelector("[data-pause]");
  if (!button) return;
  button.setAttribute("aria-pressed", String(paused));
  button.textContent = paused ? "Go on" : "Pause";
}

function start(root = document) {
  for (const it of root.querySelectorAll("[data-live]")) if (it.dataset.live) follow(it);
}

addEventListener("pagehide", () => sources.forEach((it) => it.close()));
addEventListener("pageshow", (event) => { if (event.persisted) { sources.clear(); start(); } });

// --- scheme ---

function switchScheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  remember("penstock-theme", root.dataset.theme);
}

// --- keyboard ---

let before = "";

function typing(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
  if (document.querySelector("dialog[open]") && event.key !== "?") return;
  const went = before;
  before = event.key;
  if (went === "g" && /^[1-9]$/.test(event.key)) {
    document.querySelectorAll(".rooms a")[Number(event.key) - 1]?.click();
    return;
  }
  if (event.key === "/") { event.preventDefault(); document.getElementById("find")?.focus(); }
  else if (event.key === "?") document.getElementById("shortcuts")?.showModal();
  else if (event.key === "h") document.querySelector('.acts a[href^="/help"]')?.click();
  else if (event.key === "t") switchScheme();
  else if (event.key === " " && event.target === document.body && sources.size) {
    event.preventDefault();
    pause();
  }
});

addEventListener("click", (event) => {
  const found = event.target instanceof Element ? event.target.closest("[data-open], [data-theme-toggle], [data-pause]") : null;
  if (!found) return;
  if (found.dataset.open) document.getElementById(found.dataset.open)?.showModal();
  else if ("themeToggle" in found.dataset) switchScheme();
  else if ("pause" in found.dataset) pause();
});

// A change that cannot be taken back asks once more.
addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// --- the tour, once ---

function showTour(dialog) {
  const steps = [...dialog.querySelectorAll("li")];
  const place = dialog.querySelector("[data-tour-place]");
  const next = dialog.querySelector("[data-tour-next]");
  const back = dialog.querySelector("[data-tour-back]");
  let at = 0;
  const show = () => {
    steps.forEach((it, number) => { it.hidden = number !== at; });
    place.textContent = `${at + 1} of ${steps.length}`;
    next.textContent = at === steps.length - 1 ? "Done" : "Next";
    back.disabled = at === 0;
  };
  next.addEventListener("click", () => { if (at === steps.length - 1) dialog.close(); else { at += 1; show(); } });
  back.addEventListener("click", () => { at -= 1; show(); });
  remember("penstock-tour", "seen");
  show();
  dialog.showModal();
}

// Where rooms and tabs scroll sideways, the one that is open is in sight.
for (const it of document.querySelectorAll(".rooms [aria-current], .tabs [aria-current]")) {
  const row = it.closest(".rooms, .tabs ul");
  if (row && row.scrollWidth > row.clientWidth) row.scrollLeft = it.offsetLeft - row.clientWidth / 3;
}

localize();
start();
const tour = document.querySelector("[data-tour]");
if (tour) showTour(tour);
