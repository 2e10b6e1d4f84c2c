import type { Add, AddSummary, FailedAdds, PageData, PageTable } from './data.js';
import { barOf, longestPhase, msText, PHASE_TEXTS, stackOf, ticksOf, type Bar } from './layout.js';

const REFRESH_MS = 2000;

/** A narrower part of a bar has no room for its name. */
const MIN_LABELLED_PERCENT = 14;

/** The data on the page, the chosen ADD, which may have left the lists since, and whether the page follows. */
const shown: { data: PageData | undefined; chosen: Add | undefined; isPaused: boolean } = {
  data: undefined,
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
    showSteps();
  });
  return button;
}

/** On a narrow screen the steps are below the lists. */
function showSteps(): void {
  const { top, bottom, height } = byId('waterfall').getBoundingClientRect();
  if (top >= 0 && bottom <= innerHeight) return;
  byId('waterfall').scrollIntoView({ block: height < innerHeight ? 'nearest' : 'start' });
}

function stacked({ phases }: Add, ticksMs: readonly number[]): HTMLElement {
  const parts = stackOf(phases, ticksMs.at(-1) ?? 1).map((part) => {
    const label = part.widthPercent > MIN_LABELLED_PERCENT ? part.phase : '';
    const title = `${part.phase}: ${msText(part.ms)} ms`;
    return placed(element('span', { class: `part phase-${part.phase}`, title }, label), part);
  });
  return track(ticksMs, parts);
}

function percentileBars({ percentiles }: AddSummary): HTMLElement[] {
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

function phaseTable({ phases, percentiles }: AddSummary): HTMLElement[] {
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

function addList(title: string, none: string, rows: readonly HTMLElement[]): HTMLElement {
  const heading = element('h2', {}, title);
  if (rows.length === 0) return element('div', {}, heading, element('p', { class: 'note' }, none));
  return element('div', {}, heading, element('ul', {}, ...rows.map((row) => element('li', {}, row))));
}

function addRow(kind: string, add: Add): HTMLElement {
  const longest = longestPhase(add.phases);
  const mostIn = longest ? `most in ${longest.phase}: ${msText(longest.ms)} ms` : '';
  return selector(
    `${kind} ${add.id}`,
    add,
    { class: add.result === 'success' ? 'add' : 'add failed' },
    element('span', { class: 'pod' }, add.pod),
    element('span', { class: 'number' }, `${msText(add.durationMs)} ms`),
    element('span', { class: 'note about' }, add.result === 'success' ? mostIn : add.result),
    element('span', { class: 'note number' }, clockTime(add.startedAt)),
  );
}

function failureRow({ count, newest }: FailedAdds): HTMLElement {
  const last = count > 1 ? `${newest.pod}, the last of ${count}` : newest.pod;
  return selector(
    `failed ${newest.result} ${newest.message ?? ''}`,
    newest,
    { class: 'add failed' },
    element('strong', { class: 'pod' }, newest.result),
    element('span', { class: 'number' }, `${count} ×`),
    element('span', { class: 'about' }, newest.message ?? ''),
    element('span', { class: 'note pod' }, last),
    element('span', { class: 'note number' }, clockTime(newest.startedAt)),
  );
}

function problemList({ faults, problems }: PageData): HTMLElement[] {
  const rows = [
    ...faults.map((fault) => element('li', { class: 'failed' }, fault)),
    ...problems.map(({ severity, object, text, next }) =>
      element(
        'li',
        { class: severity === 'error' ? 'failed' : 'warning' },
        element('strong', {}, `${object}: `),
        text,
        element('span', { class: 'note' }, `next: ${next}`),
      ),
    ),
  ];
  return rows.length > 0 ? [element('h2', {}, 'Problems'), element('ul', {}, ...rows)] : [];
}

/** A table of podwirectl, without the columns that are empty in each row. */
function stateTable({ title, columns, rows, none }: PageTable): HTMLElement {
  if (rows.length === 0) return element('p', { class: 'note' }, none);
  const used = columns.flatMap((column, index) => {
    if (rows.every((row) => row[index] === '')) return [];
    const isNumber = typeof column !== 'string';
    return { index, name: isNumber ? column.right : column, class: isNumber ? 'number' : 'text' };
  });
  const head = used.map(({ name, class: kind }) => element('th', { scope: 'col', class: kind }, name));
  const body = rows.map((row) =>
    element('tr', {}, ...used.map(({ index, class: kind }) => element('td', { class: kind }, row[index] ?? ''))),
  );
  const caption = title === undefined ? [] : [element('caption', {}, title)];
  const parts = [element('thead', {}, element('tr', {}, ...head)), element('tbody', {}, ...body)];
  return element('div', { class: 'scroll', tabindex: '0' }, element('table', {}, ...caption, ...parts));
}

function actionButtons({ actions }: PageData): HTMLElement[] {
  return actions.map(({ name, text }) => {
    const button = element('button', { type: 'button', 'data-key': `action ${name}` }, text);
    button.addEventListener('click', () => {
      button.setAttribute('disabled', '');
      void execute(name).then(refresh, (error: unknown) => setState('failed', `${text}: ${messageOf(error)}`));
    });
    return button;
  });
}

function facts({ node, startedAt, result, message, durationMs, addresses, containerId, traceId }: Add): HTMLElement {
  const entries = {
    Node: node,
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
  const { data } = shown;
  if (!data) return;
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.key : undefined;
  const stepsTop = byId('waterfall').getBoundingClientRect().top;
  const { addCount, failedCount, since, slowest, failures, newest } = data.adds;
  shown.chosen ??= slowest[0] ?? failures[0]?.newest;
  const sinceText = since === null ? '' : `, since ${clockTime(since)}`;
  byId('scope').textContent = `${data.scope}: ${addCount} ADDs, ${failedCount} failed${sinceText}`;
  byId('actions').replaceChildren(...actionButtons(data));
  byId('problems').replaceChildren(...problemList(data));
  byId('bars').replaceChildren(...percentileBars(data.adds));
  byId('phases').replaceChildren(...phaseTable(data.adds));
  byId('lists').replaceChildren(
    addList(
      'Slowest ADDs',
      'None has succeeded yet.',
      slowest.map((add) => addRow('slowest', add)),
    ),
    addList('Failed ADDs by reason', 'None has failed.', failures.map(failureRow)),
    addList(
      'Newest ADDs',
      'None yet.',
      newest.map((add) => addRow('newest', add)),
    ),
  );
  byId('tables').replaceChildren(...data.tables.map(stateTable));
  if (shown.chosen) renderChosen(shown.chosen);
  if (focused !== undefined)
    document.querySelector<HTMLElement>(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  // Who reads the steps below the lists keeps them in view when the lists above grow.
  if (stepsTop >= 0 && stepsTop < innerHeight) scrollBy(0, byId('waterfall').getBoundingClientRect().top - stepsTop);
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

/** The server is of the same release and has checked the services' answers, so one field is enough to recognize it. */
function isPageData(value: unknown): value is PageData {
  return typeof value === 'object' && value !== null && 'adds' in value;
}

async function execute(action: string): Promise<void> {
  const response = await fetch(`actions/${action}`, { method: 'POST' });
  if (!response.ok) throw new Error(await response.text());
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

async function refresh(): Promise<void> {
  try {
    const response = await fetch('data.json');
    if (!response.ok) throw new Error(await response.text());
    const data: unknown = await response.json();
    if (!isPageData(data)) throw new Error('another program answers; reload the page');
    // Pressed while the request was under way.
    if (shown.isPaused) return;
    shown.data = data;
    setState('live', 'Live');
    render();
  } catch (error) {
    const ended = 'the program that serves this page has ended';
    setState('failed', `No new data: ${error instanceof TypeError ? ended : messageOf(error)}`);
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
