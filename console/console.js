// What is shown comes from the server as it is: URLs, hosts and names may hold anything, so all of it becomes text
// (textContent), never markup.
'use strict';

const $ = id => document.getElementById(id);
const HOUR = 3600, DAY = 86400, ROWS = 200, PURGES = 50, COLOURS = 7, SMOOTH = 10;
const HITS = ['HIT', 'STALE', 'UPDATING'];
const NOTE = $('log-note').textContent;

let about = null, stream = null, earlier = null, past = [], latest = null, paused = false, filter = {};
let charts = null;

/* ---- small things ---- */

function made(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

const cell = (text, className) => made('td', text, className);
const whole = new Intl.NumberFormat();
const percent = (part, all) => all > 0 ? (100 * part / all).toFixed(part === all ? 0 : 1) + ' %' : '–';

function size(bytes) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let at = 0;
  while (bytes >= 10240 && at < units.length - 1) { bytes /= 1024; at++; }
  return `${Math.round(bytes)} ${units[at]}`;
}

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

const millis = ms => ms < 1 ? '<1' : ms < 10 ? ms.toFixed(1) : String(Math.round(ms));
const clock = at => new Date(at).toLocaleTimeString([], { hour12: false });
const reason = id => about.reasons[id] || { title: String(id), advice: '', name: '' };
const hitsOf = answers => HITS.reduce((all, status) => all + (answers[status] || 0), 0);
const sum = counts => Object.values(counts).reduce((all, count) => all + count, 0);

function state(text, className) {
  $('state').textContent = text;
  $('state').className = className || '';
}

async function ask(method, path, content) {
  const answer = await fetch(path, {
    method, body: content, cache: 'no-store',
    headers: content === undefined ? {} : { 'Content-Type': 'application/json' },
  });
  const text = await answer.text();
  let value = {};
  try { value = JSON.parse(text); } catch { value = { error: text.trim() }; }
  if (!answer.ok) {
    const problem = new Error(value.error || `status ${answer.status}`);
    problem.login = value.login;
    throw problem;
  }
  return value;
}

/* ---- figures ---- */

// The end of a step of the server's histogram, in milliseconds (crates/kernel/src/live/times.rs).
const stepEnd = step => (5 + step % 4) * 2 ** Math.floor(step / 4) / 1000;

function difference(now, then) {
  const less = (a, b) => Object.fromEntries(Object.entries(a).map(([name, count]) => [name, count - (b[name] || 0)]));
  return {
    seconds: (now.now - then.now) / 1000,
    requests: now.requests - then.requests,
    saved: now.saved_ms - then.saved_ms,
    unstorable: now.unstorable - then.unstorable,
    answers: less(now.answers, then.answers),
    reasons: less(now.reasons, then.reasons),
    times: now.times && then.times ? now.times.map((count, step) => count - (then.times[step] || 0)) : [],
  };
}

// What was counted within the last seconds; 0: since the server's start.
function within(seconds) {
  const now = past[past.length - 1];
  if (!seconds) {
    const nothing = { now: now.begun, requests: 0, saved_ms: 0, unstorable: 0, answers: {}, reasons: {}, times: [] };
    return difference(now, nothing);
  }
  const from = now.now - 1000 * seconds - 500;
  return difference(now, past.find(then => then.now >= from));
}

// Requests that the cache could have answered, had it been asked before: those that no rule passed by, and whose answers may
// be stored.
function storable({ answers, unstorable }) {
  return Math.max(0, sum(answers) - (answers.BYPASS || 0) - unstorable);
}

function percentile(times, part) {
  const all = sum(times);
  if (all <= 0) return null;
  let below = 0;
  for (let step = 0; step < times.length; step++) {
    below += times[step];
    if (below >= part * all) return stepEnd(step);
  }
  return null;
}

function take(figures) {
  const last = past[past.length - 1];
  if (last && (figures.begun !== last.begun || figures.requests < last.requests)) {
    past = [];
  }
  if (!past.length && earlier) past = before(figures, earlier);
  earlier = null;
  // Of pages, zones and upstreams only the latest is shown.
  const { now, begun, requests, saved_ms, unstorable, answers, reasons, times } = figures;
  add(past, { now, begun, requests, saved_ms, unstorable, answers, reasons, times });
  latest = figures;
  thin(now);
  show(figures);
}

// Adds the figures of a moment to others, with what the charts show of it.
function add(moments, figures) {
  moments.push(figures);
  figures.shown = shown(moments, moments.length - 1, SMOOTH);
}

// What the charts show of one of several moments: the rates since the one before, and the times of as many as are `smooth`.
function shown(moments, place, smooth) {
  if (place === 0) return null;
  const one = difference(moments[place], moments[place - 1]);
  if (one.seconds <= 0) return null;
  const { times } = difference(moments[place], moments[Math.max(0, place - smooth)]);
  return {
    all: one.requests / one.seconds, misses: sum(one.reasons) / one.seconds,
    hits: hitsOf(one.answers) / one.seconds,
    p50: percentile(times, .5), p95: percentile(times, .95), p99: percentile(times, .99),
  };
}

// The figures of moments before the first ones: these, less what the server counted since. Its rows have a time and counts by column;
// where nothing was counted there is none.
function before(figures, { columns, seconds, minutes }) {
  const first = seconds.length ? seconds[0][0] : Infinity;
  const rows = [...minutes.filter(([at]) => at < first), ...seconds];
  const found = [];
  let { requests, saved_ms, unstorable } = figures, answers = { ...figures.answers }, reasons = { ...figures.reasons };
  const moment = now => ({ now, begun: figures.begun, requests, saved_ms, unstorable, answers: { ...answers }, reasons: { ...reasons }, times: null });
  for (let place = rows.length - 1; place >= 0; place--) {
    const [at, counts] = rows[place];
    found.push(moment(Math.min(at, figures.now - 1)));
    for (const [column, count] of counts) {
      const [name, of] = columns[column];
      if (name === 'answers') answers[of] -= count;
      else if (name === 'reasons') reasons[of] -= count;
      else if (name === 'requests') requests -= count;
      else if (name === 'saved_ms') saved_ms -= count;
      else unstorable -= count;
    }
    const step = at < first ? 60000 : 1000;
    if (place === 0 || rows[place - 1][0] < at - 1.5 * step) found.push(moment(at - step));
  }
  const moments = [];
  found.reverse().forEach(figures => add(moments, figures));
  return moments;
}

// Of what is older than an hour one moment for each minute is kept, for a day.
function thin(now) {
  if (past.length < 2 * HOUR && past.length % 60) return;
  let minute = null;
  past = past.filter(figures => {
    const age = (now - figures.now) / 1000, own = Math.floor(figures.now / 60000);
    const stays = age < HOUR || age < DAY && own !== minute;
    if (age >= HOUR) minute = own;
    return stays;
  });
  past.forEach((figures, place) => {
    if (now - figures.now >= 1000 * (HOUR - 60)) figures.shown = shown(past, place, 1);
  });
}

function show(figures) {
  const span = within(Number($('span').value));
  const answers = span.answers, able = storable(span);
  const hits = hitsOf(answers);
  $('ratio-all').textContent = percent(hits, span.requests);
  $('ratio-all-note').textContent = `${whole.format(hits)} of ${whole.format(span.requests)}, including files and bypassed requests`;
  $('ratio-able').textContent = percent(hits, able);
  $('ratio-able-note').textContent = `${whole.format(hits)} of ${whole.format(able)}, excluding bypassed requests and responses that may not be stored`;
  $('saved').textContent = duration(span.saved);
  const lately = within(SMOOTH);
  $('saved-note').textContent = lately.seconds > 0 ? `now ${(lately.saved / 1000 / lately.seconds).toFixed(1)} s per second` : '';
  $('rate').textContent = lately.seconds > 0 ? (lately.requests / lately.seconds).toFixed(1) : '–';
  $('connections').textContent = `${whole.format(figures.connections.active)} connections, ${whole.format(figures.connections.waiting)} idle`;
  showReasons(span.reasons);
  showPages(figures.pages);
  showZones(figures.caches);
  showUpstreams(figures.upstreams);
  draw();
}

function showReasons(counts) {
  const all = sum(counts);
  const found = Object.entries(counts).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  const bar = $('bar'), list = $('reasons');
  const parts = found.map(([id, count]) => `${reason(id).title}: ${percent(count, all)}`);
  bar.setAttribute('aria-label', parts.length ? parts.join(', ') : 'Every request was a hit');
  // The rows stay while their reasons do, so that a key press or a reader's place is not lost each second.
  const names = found.map(([id]) => id).join();
  if (list.dataset.names !== names) {
    list.dataset.names = names;
    const focused = document.activeElement && document.activeElement.dataset.reason;
    bar.replaceChildren(...found.map((_, at) => made('span', undefined, `c${at % COLOURS}`)));
    list.replaceChildren(...found.map(([id], at) => {
      const row = made('li'), button = made('button', reason(id).title);
      button.type = 'button';
      button.title = 'Show these requests below';
      button.dataset.reason = id;
      button.addEventListener('click', () => choose(reason(id).name));
      row.append(made('i', undefined, `c${at % COLOURS}`), button, made('span', '', 'count'), made('p', reason(id).advice));
      return row;
    }));
    const again = [...list.querySelectorAll('button')].find(button => button.dataset.reason === focused);
    if (again) again.focus();
  }
  found.forEach(([, count], at) => {
    bar.children[at].style.flexGrow = count;
    list.children[at].querySelector('.count').textContent = `${whole.format(count)} · ${percent(count, all)}`;
  });
}

// The rows of a table; those that hold the focus keep it.
function rows(table, all) {
  const body = $(table).tBodies[0];
  const focused = body.contains(document.activeElement) ? document.activeElement.textContent : null;
  body.replaceChildren(...all);
  if (focused !== null) {
    const again = [...body.querySelectorAll('button')].find(button => button.textContent === focused);
    if (again) again.focus();
  }
}

function row(...cells) {
  const made = document.createElement('tr');
  made.append(...cells);
  return made;
}

// A URL that can be asked about.
function link(text, url) {
  const place = made('td', undefined, 'page'), button = made('button', text);
  button.type = 'button';
  button.addEventListener('click', () => {
    $('url').value = url;
    $('url').focus();
    $('ask').requestSubmit();
  });
  place.append(button);
  return place;
}

function showPages(pages) {
  rows('pages', pages.map(page => {
    const host = page.host || location.hostname;
    return row(
      link(host + page.path, `${location.protocol}//${host}${portOf(host)}${page.path}`), cell(reason(page.reason).title),
      cell(whole.format(page.requests), 'number'), cell(duration(page.micros / 1000 / page.requests), 'number'),
      cell(duration(page.micros / 1000), 'number'));
  }));
}

const portOf = host => location.port && !/:\d+$/.test(host) ? `:${location.port}` : '';

function full(tier) {
  const place = cell(`${size(tier.bytes)} in ${whole.format(tier.pages)}`);
  if (tier.max) {
    const meter = made('meter');
    meter.max = tier.max;
    meter.value = tier.bytes;
    meter.setAttribute('aria-label', `${percent(tier.bytes, tier.max)} of ${size(tier.max)}`);
    place.append(' ', meter, ` of ${size(tier.max)}`);
  }
  return place;
}

function showZones(zones) {
  rows('zones', Object.entries(zones).map(([name, zone]) => {
    const answers = zone.answers, hits = hitsOf(answers);
    const evicted = Object.entries(zone.evicted).map(([why, count]) => `${why} ${whole.format(count)}`).join(', ');
    return row(cell(name, 'name'), cell(percent(hits, sum(answers)), 'number'), full(zone.memory), full(zone.disk),
      cell(evicted || 'none'), cell(whole.format(zone.purged), 'number'));
  }));
}

function showUpstreams(groups) {
  const all = [];
  for (const [name, group] of Object.entries(groups)) {
    group.peers.forEach(peer => {
      const label = peer.server === name || peer.name === name ? name : `${name}: ${peer.server}`;
      const mean = peer.answers ? peer.micros / 1000 / peer.answers : null;
      all.push(row(cell(label, 'page'), cell(peer.state, peer.state === 'up' ? 'hit' : 'fail'),
        cell(whole.format(peer.active), 'number'), cell(whole.format(peer.requests), 'number'),
        cell(whole.format(peer.fails), peer.fails ? 'number fail' : 'number'), cell(mean === null ? '–' : millis(mean), 'number')));
    });
  }
  rows('upstreams', all);
}

/* ---- charts ---- */

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function chart(place, unit, series) {
  const axis = { stroke: colour('--soft'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') } };
  return new uPlot({
    width: Math.max(240, place.clientWidth), height: 190,
    scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [{ ...axis, space: 80, values: (_, all) => all.map(value => clock(1000 * value)) }, { ...axis, size: 68, values: (_, all) => all.map(value => value === null ? '' : `${value}${unit}`) }],
    series: [{ label: 'at', value: (_, value) => value === null ? '–' : clock(1000 * value) }, ...series.map(one => ({
      label: one.label, stroke: colour(one.colour), width: 2, points: { show: false }, dash: one.dash,
      value: (_, value) => value === null ? '–' : `${value >= 10 ? Math.round(value) : value.toFixed(1)}${unit}`,
    }))],
    cursor: { drag: { x: false, y: false } },
  }, [[], ...series.map(() => [])], place);
}

function makeCharts() {
  for (const id of ['requests-chart', 'times-chart']) $(id).replaceChildren();
  charts = {
    requests: chart($('requests-chart'), '', [
      { label: 'all', colour: '--text', dash: [6, 4] }, { label: 'hits', colour: '--good' }, { label: 'misses', colour: '--r1' }]),
    times: chart($('times-chart'), ' ms', [
      { label: 'p50', colour: '--good' }, { label: 'p95', colour: '--r3' }, { label: 'p99', colour: '--r1' }]),
  };
}

function draw() {
  if (!charts) makeCharts();
  // As long as the period, a quarter of an hour at least.
  const from = past.length ? past[past.length - 1].now - 1000 * Math.max(900, Number($('span').value) || HOUR) : 0;
  const points = past.filter(figures => figures.shown && figures.now >= from);
  const line = name => points.map(({ shown }) => shown[name]);
  const at = points.map(({ now }) => now / 1000);
  const [all, hits, misses, p50, p95, p99] = ['all', 'hits', 'misses', 'p50', 'p95', 'p99'].map(line);
  charts.requests.setData([at, all, hits, misses]);
  charts.times.setData([at, p50, p95, p99]);
  const last = list => list.length ? list[list.length - 1] : null;
  const text = value => value === null ? 'none' : `${millis(value)} ms`;
  $('requests-chart').setAttribute('aria-label', `Requests per second: now ${(last(all) || 0).toFixed(1)}, hits ${(last(hits) || 0).toFixed(1)}`);
  $('times-chart').setAttribute('aria-label', `Response time: median ${text(last(p50))}, 95th percentile ${text(last(p95))}, 99th ${text(last(p99))}`);
}

/* ---- the log ---- */

function showRequests({ lines, left_out: leftOut }) {
  if (leftOut) $('log-note').textContent = `${whole.format(leftOut)} more requests were left out just now.`;
  if (paused) return;
  const body = $('log').tBodies[0];
  const made = lines.map(line => {
    const url = `${line.scheme}://${line.host}${portOf(line.host)}${line.path}`;
    const cache = line.cache || '–', isHit = HITS.includes(line.cache);
    return row(cell(clock(line.at)), cell(cache, isHit ? 'hit' : ''), cell([line.reason && reason(line.reason[0]).title, line.header].filter(Boolean).join(': ')),
      cell(line.status, line.status >= 500 ? 'number fail' : 'number'), cell(millis(line.micros / 1000), 'number'),
      link(`${line.method} ${line.host}${line.path}${line.args}`, url));
  });
  if (!body.contains(document.activeElement)) {
    body.prepend(...made.reverse());
    while (body.rows.length > ROWS) body.deleteRow(-1);
  }
}

function showPurges(purges) {
  const list = $('purges');
  if (!list.dataset.some) list.replaceChildren();
  list.dataset.some = 'yes';
  list.prepend(...purges.reverse().map(purge => {
    const what = purge.kind === 'all' ? 'everything' : `${purge.kind} ${purge.what}`;
    return made('li', `${clock(purge.at)}  ${what}: ${whole.format(purge.pages)} ${purge.pages === 1 ? 'page' : 'pages'}${purge.soft ? ', served stale while refreshed' : ''}`);
  }));
  while (list.children.length > PURGES) list.lastElementChild.remove();
}

function choose(name) {
  $('f-reason').value = name;
  applyFilter();
  $('log-title').scrollIntoView({ block: 'start' });
}

function applyFilter() {
  filter = {
    miss: $('f-miss').checked ? '1' : '', host: $('f-host').value.trim(), uri: $('f-uri').value.trim(),
    reason: $('f-reason').value, status: $('f-status').value.trim(), slow: $('f-slow').value.trim(),
  };
  $('log').tBodies[0].replaceChildren();
  $('log-note').textContent = NOTE;
  listen();
}

function listen() {
  if (stream) stream.close();
  const words = Object.entries(filter).filter(([, value]) => value);
  stream = new EventSource('events?' + new URLSearchParams(words));
  stream.addEventListener('figures', event => {
    state('live', 'live');
    take(JSON.parse(event.data));
  });
  stream.addEventListener('requests', event => showRequests(JSON.parse(event.data)));
  stream.addEventListener('purges', event => showPurges(JSON.parse(event.data)));
  stream.addEventListener('error', () => {
    const isOver = stream.readyState === EventSource.CLOSED;
    state(isOver ? `disconnected; the viewer limit (${about.viewers_max}) may be reached` : 'reconnecting …', 'lost');
    // A refusal ends the stream for good: the server may just be starting.
    if (isOver) setTimeout(begin, 5000);
  });
}

/* ---- questions and orders ---- */

async function order(what, work) {
  $('answer').textContent = '…';
  try {
    $('answer').textContent = await work($('url').value.trim());
  } catch (problem) {
    $('answer').textContent = `${what}: ${problem.message}`;
  }
}

const explain = url => order('explain', async () => {
  const { rows: found } = await ask('GET', 'explain?' + new URLSearchParams({ url }));
  rows('explained', found.map(([name, value]) => {
    const head = made('th', name);
    head.scope = 'row';
    return row(head, cell(value, 'page'));
  }));
  $('explained').hidden = false;
  // The page has an address of its own, to come back to or to send.
  history.replaceState(null, '', '#' + new URLSearchParams({ url }));
  return '';
});

function listenToForms() {
  $('ask').addEventListener('submit', event => { event.preventDefault(); explain($('url').value.trim()); });
  const withUrl = work => () => { if ($('ask').reportValidity()) work(); };
  $('purge').addEventListener('click', withUrl(() => order('purge', async url => {
    const { purged } = await ask('POST', 'purge', JSON.stringify({ urls: [url] }));
    return `${whole.format(purged)} ${purged === 1 ? 'page' : 'pages'} purged`;
  })));
  $('warm').addEventListener('click', withUrl(() => order('warm', async url => {
    const { status, cache } = await ask('POST', 'warm', url);
    return `status ${status}, ${cache === '-' ? 'no cache' : cache}`;
  })));
  $('filter').addEventListener('submit', event => { event.preventDefault(); applyFilter(); });
  $('pause').addEventListener('click', () => {
    paused = !paused;
    $('pause').setAttribute('aria-pressed', paused);
    $('pause').textContent = paused ? 'Resume' : 'Pause';
  });
  $('span').addEventListener('change', () => latest && show(latest));
  $('login').addEventListener('submit', event => { event.preventDefault(); login($('token').value); });
}

async function login(token) {
  $('token').value = '';
  try {
    await ask('POST', 'login', token);
    begin();
  } catch (problem) {
    $('login-problem').textContent = problem.message;
  }
}

/* ---- light and dark ---- */

function dress(theme) {
  document.documentElement.dataset.theme = theme;
  $('theme').textContent = theme === 'dark' ? 'Light' : 'Dark';
  if (charts) { makeCharts(); draw(); }
}

function theme() {
  const wish = () => { try { return localStorage.getItem('theme'); } catch { return null; } };
  const system = matchMedia('(prefers-color-scheme: dark)');
  const choose = () => dress(wish() || (system.matches ? 'dark' : 'light'));
  system.addEventListener('change', choose);
  $('theme').addEventListener('click', () => {
    const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    try { localStorage.setItem('theme', next); } catch { /* it holds for this visit */ }
    dress(next);
  });
  choose();
}

/* ---- the beginning ---- */

async function begin() {
  try {
    about = await ask('GET', 'about');
  } catch (problem) {
    state(problem.message, 'lost');
    $('login').hidden = !problem.login;
    $('main').hidden = true;
    if (problem.login) $('token').focus();
    else setTimeout(begin, 5000);
    return;
  }
  $('login').hidden = true;
  $('main').hidden = false;
  $('version').textContent = about.version;
  document.querySelectorAll('.write').forEach(button => { button.hidden = !about.write; });
  if ($('f-reason').options.length === 1) {
    about.reasons.forEach(one => {
      const option = made('option', `${one.title} (${one.name})`);
      option.value = one.name;
      $('f-reason').append(option);
    });
  }
  try { earlier = await ask('GET', 'history'); } catch { /* what follows is shown all the same */ }
  listen();
  if (named) {
    $('url').value = named;
    named = null;
    $('ask').requestSubmit();
  }
}

listenToForms();
theme();
addEventListener('resize', () => {
  if (!charts) return;
  charts.requests.setSize({ width: Math.max(240, $('requests-chart').clientWidth), height: 190 });
  charts.times.setSize({ width: Math.max(240, $('times-chart').clientWidth), height: 190 });
});
// A link may name a page after its #, and bring the token there, which no server and no log gets to see.
const brought = new URLSearchParams(location.hash.slice(1));
let named = brought.get('url');
if (brought.get('token')) {
  history.replaceState(null, '', location.pathname);
  login(brought.get('token'));
} else {
  begin();
}
