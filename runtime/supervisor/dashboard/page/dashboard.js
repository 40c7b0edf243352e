// The dashboard's page: shows each state that the server sends (dashboard_state.h).
//
// Texts of jobs go in by textContent alone. The token comes in the address's fragment, stays in this tab, and goes out in a header.
"use strict";

const find = (id) => document.getElementById(id);
const PHASES = ["productive", "waiting", "rendezvous", "spawn", "init", "replay", "detect", "stop"];
const COLOURS = ["#2e9e63", "#9aa5b1", "#6f8fc9", "#4a7bd0", "#8f6fd0", "#d08f3a", "#d0573a", "#b3261e"];
const RETRY_MS = 1000;
const LOG_MS = 1000;
const CURVES_MS = 5000;
const MOST_PANELS = 24;
const CURVE = {width: 320, height: 140, top: 16, bottom: 16};

const page = {state: null, job: "", rank: 0, lines: [], notice: "", asked: 0, actions: [], wanted: null, curves: null, reports: new Map()};

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

// One child for each item, made once and kept under its key: what has the focus keeps it.
function keep(parent, items, keyOf, make, update) {
  const known = parent.kept ?? (parent.kept = new Map());
  const seen = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    seen.add(key);
    let child = known.get(key);
    if (!child) known.set(key, child = make(item));
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const [key, child] of known) {
    if (seen.has(key)) continue;
    child.remove();
    known.delete(key);
  }
}

const seconds = (value) => value >= 100 ? value.toFixed(0) + " s" : value >= 1 ? value.toFixed(2) + " s" : (value * 1000).toFixed(1) + " ms";
const clock = (wall) => new Date(wall * 1000).toLocaleTimeString([], {hour12: false});
const keyOfJob = (job) => job.uuid || job.id;
const hasEnded = (job) => ["succeeded", "failed", "cancelled", "ended"].includes(job.state);
// A process on another node has no number here.
const runs = (job, rank) => rank.pid > 0 || (!rank.end && ["running", "stopping", "suspended"].includes(job.state));
const chosenJob = () => page.state?.jobs.find((job) => keyOfJob(job) === page.job);

function productive(job) {
  if (!job.seconds) return "";
  const all = PHASES.reduce((sum, phase) => sum + job.seconds[phase], 0);
  return all > 0 ? (100 * job.seconds.productive / all).toFixed(1) + " %" : "";
}

// ---- jobs and nodes ----

function showJobs(jobs) {
  keep(find("jobs"), jobs, keyOfJob, (job) => {
    const row = element("tr");
    const button = element("button", job.id);
    button.type = "button";
    button.addEventListener("click", () => choose(keyOfJob(job)));
    row.appendChild(element("td")).appendChild(button);
    for (let i = 0; i < 6; ++i) row.appendChild(element("td"));
    return row;
  }, (row, job) => {
    const running = job.ranks.filter((rank) => runs(job, rank)).length;
    const texts = [job.user, job.state, `${running} of ${job.ranks.length}`, String(job.generation), String(job.restarts), productive(job)];
    texts.forEach((text, i) => setText(row.cells[i + 1], text));
    setClass(row.cells[2], job.state);
    setClass(row, keyOfJob(job) === page.job ? "chosen" : "");
  });
}

function choose(job) {
  page.job = job;
  page.curves = {panels: [], notice: ""};
  page.rank = 0;
  show();
  showCurves();
  readLog();
  readCurves();
}

function showNodes(nodes) {
  find("nodes-section").hidden = nodes.length === 0;
  const counts = {};
  for (const node of nodes) counts[node.state] = (counts[node.state] ?? 0) + 1;
  setText(find("node-counts"), Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", "));
  const wanted = find("node-search").value.trim();
  const shown = nodes.filter((node) => !wanted || node.id.includes(wanted) || node.state.includes(wanted));
  keep(find("nodes"), shown, (node) => node.id, (node) => {
    const item = element("li");
    item.append(element("b", node.id), element("span"));
    return item;
  }, (item, node) => {
    setText(item.lastChild, node.state);
    setClass(item.lastChild, node.state);
    item.title = `${node.id}, ${node.slots} slots` + (node.endpoint ? `, ${node.endpoint}` : "");
  });
}

// ---- ranks ----

// The coordinator knows the last report of a rank on another node: two of them make a time.
function addTimes(state) {
  for (const job of state.jobs) {
    for (const rank of job.ranks) {
      if (rank.pid > 0 || rank.step === undefined) continue;
      const key = `${keyOfJob(job)} ${job.generation} ${rank.rank}`;
      const at = state.wall_seconds - rank.silent_seconds;
      const before = page.reports.get(key);
      if (!before) page.reports.set(key, {step: rank.step, at, time: 0});
      else if (rank.step > before.step) Object.assign(before, {step: rank.step, at, time: (at - before.at) / (rank.step - before.step)});
      if (before?.time > 0) rank.seconds_per_step = before.time;
    }
  }
}

function rankText(rank) {
  const parts = [`rank ${rank.rank}`, `on ${rank.node}`];
  if (rank.pid > 0) parts.push(`process ${rank.pid}`);
  if (rank.end) parts.push(`ended: ${rank.end}`);
  if (rank.step !== undefined) parts.push(`step ${rank.step}`, `last report ${seconds(rank.silent_seconds)} ago`);
  if (rank.seconds_per_step) parts.push(`${seconds(rank.seconds_per_step)} a step`);
  return parts.join(", ");
}

function showRanks(job) {
  const ranks = job?.ranks ?? [];
  const times = ranks.map((rank) => rank.seconds_per_step ?? 0).filter((time) => time > 0);
  const least = Math.min(...times), most = Math.max(...times);
  setText(find("fastest"), times.length ? seconds(least) : "fastest");
  setText(find("slowest"), times.length ? seconds(most) : "slowest");
  keep(find("ranks"), ranks, (rank) => rank.rank, (rank) => {
    const cell = element("button", String(rank.rank));
    cell.type = "button";
    cell.setAttribute("role", "gridcell");
    cell.addEventListener("click", () => chooseRank(rank.rank));
    return cell;
  }, (cell, rank) => {
    const time = rank.seconds_per_step ?? 0;
    const ended = !runs(job, rank);
    setClass(cell, ended ? "ended" : time > 0 ? "timed" : "");
    // From green to red; within a tenth of the fastest all are green.
    const share = time > 0 ? Math.min(1, Math.max(0, (time - least * 1.1) / Math.max(least, most - least * 1.1))) : 0;
    cell.style.backgroundColor = !ended && time > 0 ? `hsl(${145 - 140 * share} ${55 + 25 * share}% ${70 - 4 * share}%)` : "";
    cell.setAttribute("aria-selected", String(rank.rank === page.rank));
    cell.tabIndex = rank.rank === page.rank ? 0 : -1;
    const text = rankText(rank);
    if (cell.title !== text) { cell.title = text; cell.setAttribute("aria-label", text); }
  });
  const chosen = ranks.find((rank) => rank.rank === page.rank);
  setText(find("rank-text"), chosen ? rankText(chosen) : "");
  setText(find("log-rank"), `rank ${page.rank}`);
}

function chooseRank(rank) {
  page.rank = rank;
  showRanks(chosenJob());
  readLog();
}

function moveRank(key) {
  const cells = [...find("ranks").children];
  const at = cells.findIndex((cell) => cell.tabIndex === 0);
  const columns = cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length;
  const to = at + {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns}[key];
  if (!cells[to]) return;
  cells[to].click();
  cells[to].focus();
}

// ---- timeline and ledger ----

function showEvents(job, now) {
  const events = job?.events ?? [];
  const first = events.length ? events[0].wall_seconds : now;
  const span = Math.max(1, now - first);
  const numbered = events.map((event, i) => ({...event, key: `${page.job} ${event.wall_seconds} ${event.kind} ${event.rank ?? ""} ${i}`}));
  keep(find("timeline"), numbered, (event) => event.key, () => element("i"), (mark, event) => {
    setClass(mark, event.kind);
    mark.style.left = `calc(${(100 * (event.wall_seconds - first) / span).toFixed(2)}% - ${event.wall_seconds === now ? 3 : 0}px)`;
  });
  keep(find("events"), numbered.toReversed(), (event) => event.key, (event) => {
    const item = element("li");
    const what = element("span", event.kind, event.kind);
    const who = event.rank === undefined ? "" : `rank ${event.rank}: `;
    item.append(element("time", clock(event.wall_seconds)), what, element("span", `generation ${event.generation}, ${who}${event.text}`));
    return item;
  }, () => {});
}

function showLedger(job) {
  const booked = PHASES.map((phase, i) => ({phase, colour: COLOURS[i], time: job?.seconds?.[phase] ?? 0}));
  const all = booked.reduce((sum, one) => sum + one.time, 0);
  keep(find("ledger-bar"), booked, (one) => one.phase, () => element("i"), (part, one) => {
    part.style.backgroundColor = one.colour;
    part.style.flexGrow = String(all > 0 ? one.time / all : 0);
    part.title = one.phase;
  });
  const list = find("ledger");
  const rows = booked.flatMap((one) => [{...one, kind: "dt"}, {...one, kind: "time"}, {...one, kind: "share"}]);
  keep(list, rows, (row) => row.phase + row.kind, (row) => {
    if (row.kind !== "dt") return element("dd");
    const name = element("dt");
    const swatch = element("span", "", "swatch");
    swatch.style.backgroundColor = row.colour;
    name.append(swatch, row.phase);
    return name;
  }, (node, row) => {
    if (row.kind === "time") setText(node, job?.seconds ? seconds(row.time) : "");
    if (row.kind === "share") setText(node, all > 0 ? (100 * row.time / all).toFixed(1) + " %" : "");
  });
}

// ---- output ----

async function readLog() {
  const job = chosenJob();
  if (!job) return;
  const asked = ++page.asked;
  const where = new URLSearchParams({job: keyOfJob(job), rank: page.rank, stream: find("log-stream").value});
  let answer;
  try {
    const got = await fetch(`api/log?${where}`, {headers: authorization()});
    if (!got.ok) return;
    answer = await got.json();
  } catch {
    return;
  }
  if (asked !== page.asked) return;
  page.lines = answer.text.split("\n");
  if (page.lines.at(-1) === "") page.lines.pop();
  page.notice = answer.notice;
  showLog();
}

function showLog() {
  const wanted = find("log-search").value;
  const lines = wanted ? page.lines.filter((line) => line.includes(wanted)) : page.lines;
  setText(find("log-count"), wanted ? `${lines.length} of ${page.lines.length} lines` : `${page.lines.length} lines`);
  const log = find("log");
  const key = JSON.stringify([wanted, lines, page.notice]);
  if (log.key === key) return;
  log.key = key;
  const parts = [];
  for (const line of lines) {
    const pieces = wanted ? line.split(wanted) : [line];
    pieces.forEach((piece, i) => {
      if (i > 0) parts.push(element("mark", wanted));
      parts.push(piece);
    });
    parts.push("\n");
  }
  log.replaceChildren(...(lines.length ? parts : [page.notice || (wanted ? "" : "nothing was written yet")]));
  if (find("log-follow").checked) log.scrollTop = log.scrollHeight;
}

// ---- curves ----

async function readCurves() {
  const job = chosenJob();
  if (!job?.has_curves) return;
  const key = keyOfJob(job);
  try {
    const got = await fetch(`api/curves?${new URLSearchParams({job: key})}`, {headers: authorization()});
    if (!got.ok) return;
    const curves = await got.json();
    if (key !== page.job) return;
    page.curves = curves;
    showCurves();
  } catch (error) {
    setText(find("curves-notice"), `the curves cannot be shown: ${error.message}`);
  }
}

function showCurves() {
  const curves = page.curves;
  if (!curves) return;
  const wanted = find("curve-search").value.trim();
  const fitting = curves.panels.filter((panel) => panel.metric.includes(wanted));
  const shown = fitting.slice(0, MOST_PANELS);
  setText(find("curves-count"), shown.length === curves.panels.length ? "" : `${shown.length} of ${curves.panels.length} metrics`);
  setText(find("curves-notice"), curves.notice);
  keep(find("curves"), shown, (panel) => panel.metric, () => element("figure"), (figure, panel) => {
    const key = JSON.stringify(panel);
    if (figure.key === key) return;
    figure.key = key;
    figure.replaceChildren(...picture(panel, curves.x_label));
  });
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(find("drawing").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const short = (value) => String(Number(value.toPrecision(4)));

// From the least to the most; a range of nothing is widened.
function rangeOf(values) {
  let least = Infinity, most = -Infinity;
  for (const value of values) { least = Math.min(least, value); most = Math.max(most, value); }
  return least < most ? {least, most} : {least: least - 0.5, most: most + 0.5};
}

// The parts of a curve between its gaps, in the picture's units.
function partsOf(points, xs, ys) {
  const parts = [[]];
  for (const [x, y] of points) {
    if (y === null) { parts.push([]); continue; }
    const right = CURVE.width * (x - xs.least) / (xs.most - xs.least);
    const down = CURVE.top + (CURVE.height - CURVE.top - CURVE.bottom) * (ys.most - y) / (ys.most - ys.least);
    parts.at(-1).push(`${right.toFixed(1)},${down.toFixed(1)}`);
  }
  return parts.filter((part) => part.length > 0);
}

function picture(panel, xLabel) {
  const all = panel.curves.flatMap((curve) => curve.points.filter(([, y]) => y !== null));
  const xs = rangeOf(all.map(([x]) => x)), ys = rangeOf(all.map(([, y]) => y));
  const svg = drawn("svg", {viewBox: `0 0 ${CURVE.width} ${CURVE.height}`, role: "img", "aria-label": `${panel.metric}, ${short(ys.least)} to ${short(ys.most)}`});
  panel.curves.forEach((curve, i) => {
    for (const part of partsOf(curve.points, xs, ys)) {
      const points = part.length > 1 ? part : [part[0], part[0]];  // a point is a line to itself
      const line = drawn("polyline", {class: `c${i % 6}${part.length > 1 ? "" : " dot"}`, points: points.join(" "), "stroke-linecap": "round"});
      line.append(drawn("title", {}, curve.run));
      svg.append(line);
    }
  });
  svg.append(drawn("text", {x: 4, y: 12}, short(ys.most)), drawn("text", {x: 4, y: CURVE.height - 4}, short(ys.least)),
             drawn("text", {x: CURVE.width - 4, y: CURVE.height - 4, "text-anchor": "end"}, `${xLabel} ${short(xs.least)} to ${short(xs.most)}`));
  const caption = element("figcaption", panel.metric);
  const last = panel.curves.map((curve) => curve.points.findLast(([, y]) => y !== null)[1]);
  caption.append(element("b", last.map(short).join(", ")));
  return [caption, svg];
}

// ---- actions of operators ----

const DEEDS = {
  stop: {
    name: (job) => job.state === "stopping" ? `Kill ${job.id}` : `Stop ${job.id}`,
    ask: (job) => job.state === "stopping" ? `Kill job ${job.id}? It is stopping already. Its workers get SIGKILL now, and save nothing more.`
                                           : `Stop job ${job.id}? Its workers are asked to end, and killed after its grace.`,
    can: (job) => job && !hasEnded(job),
  },
  drain: {
    name: () => `Drain ${page.state.node}`,
    ask: () => `Drain node ${page.state.node}? It starts no more jobs, until \`accel undrain\`. What runs there goes on.`,
    can: () => !page.state.is_drained,
  },
  stacks: {
    name: () => `Stacks of rank ${page.rank}`,
    ask: (job) => `Take the stacks of rank ${page.rank} of job ${job.id}? Programs of libaccel write theirs to their stderr too.`,
    can: (job) => job?.ranks.some((rank) => rank.rank === page.rank && runs(job, rank)),
  },
};

async function readOffers() {
  const got = await fetch("api/offers", {headers: authorization()});
  if (!got.ok) return;
  const offers = await got.json();
  page.actions = offers.actions;
  show();
}

function showActions(job) {
  for (const [deed, {name, can}] of Object.entries(DEEDS)) {
    const button = find(deed);
    button.hidden = !page.actions.includes(deed) || !can(job);
    if (!button.hidden) setText(button, name(job));
  }
}

function confirmFirst(deed) {
  const job = chosenJob();
  if (deed !== "drain" && !job) return;
  const where = new URLSearchParams(deed === "drain" ? {} : {job: page.job, rank: page.rank});
  if (deed === "stop" && job.state === "stopping") where.set("kill", "1");
  page.wanted = {deed, name: DEEDS[deed].name(job), where};
  setText(find("confirm-text"), DEEDS[deed].ask(job));
  setText(find("confirm-yes"), page.wanted.name);
  find("confirm").showModal();
}

async function carryOut() {
  const {deed, name, where} = page.wanted;
  find("confirm").close();
  showOutcome(name, true, "asked for");
  try {
    const got = await fetch(`api/${deed}?${where}`, {method: "POST", headers: authorization()});
    if (!got.ok) return showOutcome(name, false, `refused: ${got.status} ${got.statusText}`);
    const answer = await got.json();
    showOutcome(name, answer.is_done, answer.text);
  } catch {
    showOutcome(name, false, "nobody answered: it is not known whether it was done");
  }
}

function showOutcome(title, isDone, text) {
  find("outcome").hidden = false;
  setClass(find("outcome"), isDone ? "" : "refused");
  setText(find("outcome-title"), title);
  setText(find("outcome-text"), text);
}

// ---- the whole ----

function show() {
  const state = page.state;
  if (!state) return;
  find("main").hidden = false;
  find("ask").hidden = true;
  setText(find("source"), `${state.program} ${state.version} on ${state.node}`);
  find("notice").hidden = !state.notice;
  setText(find("notice"), state.notice);
  if (!chosenJob()) page.job = state.jobs.length ? keyOfJob(state.jobs[0]) : "";
  const job = chosenJob();
  if (job && !job.ranks.some((rank) => rank.rank === page.rank)) page.rank = job.ranks[0]?.rank ?? 0;
  showJobs(state.jobs);
  showNodes(state.nodes);
  showRanks(job);
  showEvents(job, state.wall_seconds);
  showLedger(job);
  showActions(job);
  find("curves-section").hidden = !job?.has_curves;
  find("drained").hidden = !state.is_drained;
  const refused = Object.entries(state.refusals).filter(([, count]) => count > 0).map(([cause, count]) => `${count} ${cause.replace("_", " ")}`);
  setText(find("refusals"), refused.length ? `Refused: ${refused.join(", ")}.` : "");
  document.title = job ? `${job.id}: ${job.state}` : "accel";
}

function connection(text, name) {
  setText(find("connection"), text);
  setClass(find("connection"), name);
}

const authorization = () => ({Authorization: `Bearer ${sessionStorage.getItem("token") ?? ""}`});

function askForToken() {
  connection("a token is needed", "lost");
  find("ask").hidden = false;
  find("main").hidden = true;
  find("token").focus();
}

// EventSource sends no headers, so its format is read here: blocks of lines, an empty line between two.
async function readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const block = text.slice(0, end);
      if (!block.startsWith("data: ")) continue;
      const first = !page.state;
      page.state = JSON.parse(block.slice(6));
      addTimes(page.state);
      const over = page.state.program === "accel-agent" ? "the agent has ended" : "the job is over";
      connection(page.state.is_over ? over : "live", page.state.is_over ? "" : "live");
      show();
      if (first || page.state.is_over) {
        readLog();
        readCurves();
      }
    }
  }
}

async function watch() {
  for (;;) {
    try {
      const got = await fetch("api/events", {headers: authorization()});
      if (got.status === 401) return askForToken();
      if (got.ok) {
        await readOffers();
        await readEvents(got.body);
      }
    } catch {
      // The server has gone, or the network: tried again below.
    }
    if (page.state?.is_over) return;
    connection("connection lost, trying again", "lost");
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

function changeTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (isDark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  localStorage.setItem("theme", next);
  setTheme(next);
}

function stepJob(by) {
  const jobs = page.state?.jobs ?? [];
  const at = jobs.findIndex((job) => keyOfJob(job) === page.job);
  if (jobs[at + by]) choose(keyOfJob(jobs[at + by]));
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || find("confirm").open) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key.startsWith("Arrow") && event.target.closest("#ranks")) {
    event.preventDefault();
    return moveRank(event.key);
  }
  if (event.key === "j") stepJob(1);
  if (event.key === "k") stepJob(-1);
  if (event.key === "t") changeTheme();
  if (event.key === "/") {
    event.preventDefault();
    find("log-search").focus();
  }
}

function begin() {
  setTheme(localStorage.getItem("theme"));
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  find("theme").addEventListener("click", changeTheme);
  find("node-search").addEventListener("input", show);
  find("curve-search").addEventListener("input", showCurves);
  find("log-search").addEventListener("input", showLog);
  find("log-stream").addEventListener("change", readLog);
  find("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", find("token").value.trim());
    watch();
  });
  for (const deed of Object.keys(DEEDS)) find(deed).addEventListener("click", () => confirmFirst(deed));
  find("confirm-no").addEventListener("click", () => find("confirm").close());
  find("confirm-yes").addEventListener("click", carryOut);
  find("outcome-close").addEventListener("click", () => { find("outcome").hidden = true; });
  document.addEventListener("keydown", onKey);
  setInterval(() => { if (find("log-follow").checked && page.state && !page.state.is_over) readLog(); }, LOG_MS);
  setInterval(() => { if (page.state && !page.state.is_over) readCurves(); }, CURVES_MS);
  watch();
}

begin();
