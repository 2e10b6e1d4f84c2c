import type { Add, LatencySummary } from '../latency-summary.js';
import { barOf, longestPhase, msText, PHASE_TEXTS, stackOf, ticksOf, type Bar } from './layout.js';

const REFRESH_MS = 2000;

/** A narrower part of a bar has no room for its name. */
const MIN_LABELLED_PERCENT = 14;

/** The summary that is shown, the chosen ADD, which may have left the lists since, and whether the page follows. */
const shown: { summary: LatencySummary | undefined; chosen: Add | undefined; isPaused: boolean } = {
  summary: undefined,
  chosen: undefined,
  isPaused: false,
};

type Content = string | Node;

/** An element. Text becomes a text node, so that no name of a pod is ever markup. */
function element(tag: string, attributes: Readonly<Record<string, string>> = {}, ...content: Content[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...content);
  return made;
}

function byId(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (!found) throw new Error(`element #${id}: not in the page`);
  return found;
}

/** The style is set by script, as the content security policy allows no style attributes in markup. */
function placed(bar: HTMLElement, { leftPercent, widthPercent }: Bar): HTMLElement {
  bar.style.left = `${leftPercent}%`;
  bar.style.width = `${widthPercent}%`;
  return bar;
}

const clockTime = (startedAt: string): string => new Date(startedAt).toLocaleTimeString();

function phaseName(phase: string): HTMLElement {
  const swatch = element('span', { class: `swatch phase-${phase}`, 'aria-hidden': 'true' });
  return element('span', { class: 'phase' }, swatch, phase);
}

/** The place of bars, with a line at each tick. */
function track(ticksMs: readonly number[], bars: readonly HTMLElement[]): HTMLElement {
  const made = element('span', { class: 'track', 'aria-hidden': 'true' }, ...bars);
  made.style.backgroundSize = `${100 / (ticksMs.length - 1)}% 100%`;
  return made;
}

function axis(ticksMs: readonly number[]): HTMLElement {
  const endMs = ticksMs.at(-1) ?? 1;
  const labels = ticksMs.map((ms) =>
    placed(element('span', { class: 'tick' }, String(ms)), { leftPercent: (100 * ms) / endMs, widthPercent: 0 }),
  );
  return element('span', { class: 'axis', 'aria-hidden': 'true' }, ...labels);
}

/** A button that selects an ADD. The key finds it again after a refresh. */
function selector(
  key: string,
  add: Add,
  attributes: Readonly<Record<string, string>>,
  ...content: Content[]
): HTMLElement {
  const isChosen = shown.chosen?.id === add.id;
  const state = { type: 'button', 'data-key': key, 'aria-pressed': String(isChosen) };
  const button = element('button', { ...state, ...attributes }, ...content);
  button.addEventListener('click', () => {
    shown.chosen = add;
    render();
    byId('waterfall-heading').scrollIntoView({ block: 'nearest' });
  });
  return button;
}

function stacked({ phases }: Add, ticksMs: readonly number[]): HTMLElement {
  const parts = stackOf(phases, ticksMs.at(-1) ?? 1).map((part) => {
    const label = part.widthPercent > MIN_LABELLED_PERCENT ? part.phase : '';
    const title = `${part.phase}: ${msText(part.ms)} ms`;
    return placed(element('span', { class: `part phase-${part.phase}`, title }, label), part);
  });
  return track(ticksMs, parts);
}

function percentileBars({ percentiles }: LatencySummary): HTMLElement[] {
  if (percentiles.length === 0) return [element('p', {}, 'No ADD has succeeded yet.')];
  const ticksMs = ticksOf(Math.max(...percentiles.map(({ add }) => add.durationMs)));
  const rows = percentiles.map(({ name, add }) =>
    selector(
      name,
      add,
      { class: 'bar-row', 'aria-label': `${name}: ${msText(add.durationMs)} ms, ${add.pod}` },
      element('span', { class: 'rank' }, name),
      element('span', { class: 'number' }, `${msText(add.durationMs)} ms`),
      stacked(add, ticksMs),
    ),
  );
  return [...rows, element('div', { class: 'bar-row' }, axis(ticksMs))];
}

function phaseTable({ phases, percentiles }: LatencySummary): HTMLElement[] {
  if (phases.length === 0) return [];
  const header = (text: string): HTMLElement => element('th', { scope: 'col', class: 'number' }, text);
  const msOf = (add: Add, phase: string): string => msText(add.phases.find((part) => part.phase === phase)?.ms ?? 0);
  const rows = phases.map((phase) =>
    element(
      'tr',
      {},
      element('th', { scope: 'row' }, phaseName(phase), element('span', { class: 'note' }, PHASE_TEXTS[phase])),
      ...percentiles.map(({ add }) => element('td', { class: 'number' }, msOf(add, phase))),
    ),
  );
  const total = element(
    'tr',
    { class: 'total' },
    element('th', { scope: 'row' }, 'whole ADD'),
    ...percentiles.map(({ add }) => element('td', { class: 'number' }, msText(add.durationMs))),
  );
  const head = element(
    'tr',
    {},
    element('th', { scope: 'col' }, 'Phase'),
    ...percentiles.map(({ name }) => header(name)),
  );
  const caption = element('caption', {}, 'Phases of the bars above, in ms');
  return [element('table', {}, caption, element('thead', {}, head), element('tbody', {}, ...rows, total))];
}

function addList(kind: string, title: string, none: string, adds: readonly Add[]): HTMLElement {
  const heading = element('h2', {}, title);
  if (adds.length === 0) return element('div', {}, heading, element('p', { class: 'note' }, none));
  const rows = adds.map((add) => {
    const longest = longestPhase(add.phases);
    const about = add.message ?? (longest ? `most in ${longest.phase}: ${msText(longest.ms)} ms` : '');
    const code = add.result === 'success' ? [] : [element('strong', {}, add.result), ' '];
    return element(
      'li',
      {},
      selector(
        `${kind} ${add.id}`,
        add,
        { class: 'add' },
        element('span', { class: 'pod' }, add.pod),
        element('span', { class: 'number' }, `${msText(add.durationMs)} ms`),
        element('span', { class: 'note about' }, ...code, about),
        element('span', { class: 'note number' }, clockTime(add.startedAt)),
      ),
    );
  });
  return element('div', {}, heading, element('ul', {}, ...rows));
}

function facts({ startedAt, result, message, durationMs, addresses, containerId, traceId }: Add): HTMLElement {
  const entries = {
    Started: new Date(startedAt).toLocaleString(),
    Result: message === null ? result : `${result}: ${message}`,
    Time: `${msText(durationMs)} ms`,
    Addresses: addresses.join(', '),
    Container: containerId?.slice(0, 13) ?? '',
    Trace: traceId ?? '',
  };
  const given = Object.entries(entries).filter(([, value]) => value !== '');
  const pairs = given.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value)));
  return element('dl', {}, ...pairs);
}

/** The roles repeat the elements', as the narrow layout takes the rows out of the table. */
function waterfall({ intervals, durationMs }: Add): HTMLElement {
  const ticksMs = ticksOf(durationMs);
  const axisMs = ticksMs.at(-1) ?? 1;
  const cell = (name: string, ...content: Content[]): HTMLElement =>
    element('td', { role: 'cell', class: name }, ...content);
  const rows = intervals.map((interval) => {
    const bar = placed(element('span', { class: `part phase-${interval.phase}` }), barOf(interval, axisMs));
    const step = cell('step', interval.name);
    step.style.paddingInlineStart = `calc(0.5rem + ${interval.depth}em)`;
    return element(
      'tr',
      { role: 'row' },
      step,
      cell('phase', phaseName(interval.phase)),
      cell('number start', msText(interval.startMs)),
      cell('number', msText(interval.durationMs)),
      cell('bar', track(ticksMs, [bar])),
    );
  });
  const header = (name: string, ...content: Content[]): HTMLElement =>
    element('th', { role: 'columnheader', scope: 'col', class: name }, ...content);
  const head = element(
    'tr',
    { role: 'row' },
    header('step', 'Step'),
    header('phase', 'Phase'),
    header('number start', 'Start ms'),
    header('number', 'ms'),
    header('bar', axis(ticksMs)),
  );
  const groups = [element('thead', { role: 'rowgroup' }, head), element('tbody', { role: 'rowgroup' }, ...rows)];
  return element('table', { role: 'table', 'aria-labelledby': 'waterfall-heading' }, ...groups);
}

function render(): void {
  const { summary } = shown;
  if (!summary) return;
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.key : undefined;
  const { node, addCount, failedCount, since, slowest, failed, newest } = summary;
  shown.chosen ??= slowest[0] ?? failed[0];
  const sinceText = since === null ? '' : `, since ${clockTime(since)}`;
  byId('scope').textContent = `Node ${node}: ${addCount} ADDs, ${failedCount} failed${sinceText}`;
  byId('bars').replaceChildren(...percentileBars(summary));
  byId('phases').replaceChildren(...phaseTable(summary));
  byId('lists').replaceChildren(
    addList('slowest', 'Slowest ADDs', 'None has succeeded yet.', slowest),
    addList('failed', 'Failed ADDs', 'None has failed.', failed),
    addList('newest', 'Newest ADDs', 'None yet.', newest),
  );
  if (shown.chosen) renderChosen(shown.chosen);
  if (focused !== undefined) document.querySelector<HTMLElement>(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function renderChosen(add: Add): void {
  const title = `ADD of ${add.pod}`;
  // A live region is read aloud at each change of its text, also at one to the same text.
  if (byId('waterfall-heading').textContent !== title) byId('waterfall-heading').textContent = title;
  byId('steps').replaceChildren(facts(add), waterfall(add));
}

function setState(kind: 'live' | 'paused' | 'failed', message: string): void {
  if (byId('state').textContent === message) return;
  byId('state').textContent = message;
  byId('state').className = kind;
}

/** The server is of the same release and has checked podwire-node's answer, so one field is enough to recognize it. */
function isSummary(value: unknown): value is LatencySummary {
  return typeof value === 'object' && value !== null && 'percentiles' in value;
}

async function refresh(): Promise<void> {
  try {
    const response = await fetch('data.json');
    if (!response.ok) throw new Error(await response.text());
    const summary: unknown = await response.json();
    if (!isSummary(summary)) throw new Error('another program answers; reload the page');
    // Pressed while the request was under way.
    if (shown.isPaused) return;
    shown.summary = summary;
    setState('live', 'Live');
    render();
  } catch (error) {
    const reason = error instanceof TypeError ? 'the demonstration has ended' : String(error);
    setState('failed', `No new data: ${reason}`);
  }
}

async function follow(): Promise<void> {
  for (;;) {
    if (!shown.isPaused && !document.hidden) await refresh();
    await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
  }
}

byId('pause').addEventListener('click', () => {
  shown.isPaused = !shown.isPaused;
  byId('pause').setAttribute('aria-pressed', String(shown.isPaused));
  setState(shown.isPaused ? 'paused' : 'live', shown.isPaused ? 'Paused' : 'Live');
});
void follow();
