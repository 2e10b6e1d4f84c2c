import { once } from 'node:events';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';

import { PHASES } from '@podwire/shared/telemetry/phases';
import { chromium, type Browser, type BrowserContextOptions, type Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { browserPath } from '../../../deploy/local/programs.mjs';
import { summarizeAdds } from '../commands/node/add-summary.js';
import { pageServer } from '../commands/page/page-server.js';
import { addOf } from '../testing/recent-commands.js';
import type { PageData } from './data.js';

type Command = ReturnType<typeof addOf>;

/** A period of the page's refresh. */
const REFRESH_MS = 2000;

const MARKUP = '<img src=x onerror="document.title=1">';

const FAILED = addOf(21, { result: 'POOL_EXHAUSTED', message: `pool "${MARKUP}" is full`, durationMs: 7 });

/** Twenty successful ADDs of 11 to 30 ms, a failed one, and one whose pod's name is markup. */
const COMMANDS: readonly Command[] = [
  FAILED,
  ...Array.from({ length: 20 }, (_, index) => addOf(20 - index)),
  addOf(0, { pod: { namespace: 'default', name: MARKUP, uid: '' }, durationMs: 95 }),
];

/** All phases, in one ADD. */
const EVERY_PHASE = addOf(30, {
  durationMs: 10 * PHASES.length,
  intervals: PHASES.map((phase, index) => ({ name: phase, phase, startMs: 10 * index, durationMs: 10, depth: 0 })),
});

let browser: Browser;
let server: Server;
let url: string;
let answer: () => Promise<readonly Command[]>;
/** The rest of the page. */
let rest: Omit<PageData, 'scope' | 'adds'>;
/** Names of buttons that were pressed. */
const pressed: string[] = [];
const opened: Page[] = [];
/** Complaints of the browser: errors of the script, violations of the policy, files that are missing. */
const complaints: string[] = [];

beforeAll(async () => {
  const executablePath = browserPath();
  if (executablePath === undefined) throw new Error('no browser: install chromium-headless-shell, or run npm test');
  // The sandbox refuses root, as which the tests run in their namespaces.
  browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
});
afterAll(() => browser.close());

beforeEach(async () => {
  answer = () => Promise.resolve(COMMANDS);
  rest = { problems: [], tables: [], faults: [], actions: [] };
  complaints.length = 0;
  pressed.length = 0;
  server = pageServer({
    read: async () => ({
      scope: 'Node node-1',
      adds: summarizeAdds([{ node: 'node-1', commands: [...(await answer())] }]),
      ...rest,
    }),
    actions: { stop: () => Promise.resolve(void pressed.push('stop')) },
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const address: AddressInfo | string | null = server.address();
  url = `http://127.0.0.1:${typeof address === 'object' ? address!.port : 0}/`;
});
afterEach(async () => {
  for (const page of opened.splice(0)) await page.close();
  server.closeAllConnections();
  server.close();
});

async function open(options: BrowserContextOptions = {}): Promise<Page> {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, ...options });
  opened.push(page);
  page.on('console', (message) => complaints.push(message.text()));
  page.on('pageerror', (error) => complaints.push(String(error)));
  await page.clock.install();
  await page.goto(url);
  await page.getByText('Live').waitFor();
  return page;
}

const heading = (page: Page) => page.locator('#waterfall-heading').textContent();
const focusedKey = (page: Page) => page.evaluate(() => document.activeElement?.getAttribute('data-key'));
const sectionOf = (page: Page, title: string) => page.locator('#lists > div').filter({ hasText: title });

describe('content', () => {
  test('the bars have the percentiles, the table their phases', async () => {
    const page = await open();
    await expect(page.getByRole('button', { name: 'p50: 21.0 ms, default/web-11' }).count()).resolves.toBe(1);
    await expect(page.getByRole('button', { name: 'p99: 95.0 ms' }).count()).resolves.toBe(1);
    const table = page.getByRole('table', { name: 'Phases of the bars above, in ms' });
    const rows = await table.getByRole('row').allInnerTexts();
    expect(rows.map((row) => row.split(/\s+/).filter((word) => /^(\d|p\d\d$)/.test(word)))).toEqual([
      ['p50', 'p90', 'p99'],
      ['1.00', '1.00', '1.00', '1.00'],
      ['15.0', '23.0', '89.0', '89.0'],
      ['3.00', '3.00', '3.00', '3.00'],
      ['2.00', '2.00', '2.00', '2.00'],
      ['21.0', '29.0', '95.0', '95.0'],
    ]);
    expect(rows[1]).toMatch(/^shim\s*start of the CNI program/);
    await expect(page.locator('#scope').textContent()).resolves.toMatch(/^Node node-1: 22 ADDs, 1 failed, since /);
    expect(complaints).toEqual([]);
  });

  test('names of pods and messages are text, whatever they contain', async () => {
    const page = await open();
    await expect(sectionOf(page, 'Slowest').getByRole('button').first().innerText()).resolves.toContain(MARKUP);
    await expect(sectionOf(page, 'Failed').innerText()).resolves.toMatch(
      /POOL_EXHAUSTED\s+1 ×\s+pool "<img src=x onerror="document.title=1">" is full/,
    );
    expect(await heading(page)).toBe(`ADD of default/${MARKUP}`);
    await expect(page.locator('img').count()).resolves.toBe(0);
    expect(complaints).toEqual([]);
  });

  test('the waterfall has the steps of the selected ADD, each at its place', async () => {
    const page = await open();
    await sectionOf(page, 'Newest').getByRole('button', { name: 'default/web-20' }).click();
    const table = page.getByRole('table', { name: 'ADD of default/web-20' });
    const cells = await table
      .getByRole('row')
      .evaluateAll((rows) =>
        rows.slice(1).map((row) => [...row.querySelectorAll('[role=cell]:not(.bar)')].map((cell) => cell.textContent)),
      );
    expect(cells).toEqual([
      ['shim', 'shim', '0.00', '1.00'],
      ['dataplane AttachPod', 'dataplane', '2.00', '5.00'],
      ['podwire.kernel.batch', 'kernel', '3.00', '2.00'],
    ]);
    const bars = await table.locator('.part').evaluateAll((parts) =>
      parts.map((part) => {
        const [bar, track] = [part.getBoundingClientRect(), part.parentElement!.getBoundingClientRect()];
        return [bar.left - track.left, bar.width].map((pixels) => Math.round((300 * pixels) / track.width) / 10);
      }),
    );
    // An axis of 30 ms.
    expect(bars.map(([left, width]) => [left!, width!])).toEqual([
      [expect.closeTo(0, 0), expect.closeTo(1, 0)],
      [expect.closeTo(2, 0), expect.closeTo(5, 0)],
      [expect.closeTo(3, 0), expect.closeTo(2, 0)],
    ]);
  });

  test('a node without ADDs is stated', async () => {
    answer = () => Promise.resolve([]);
    const page = await open();
    const text = await page.locator('main').innerText();
    for (const none of ['No ADD has succeeded yet.', 'None has failed.', 'None yet.']) expect(text).toContain(none);
  });
});

describe('state', () => {
  const PROBLEM = {
    severity: 'error',
    object: 'node n1',
    text: `silent ${MARKUP}`,
    next: 'podwirectl get nodes',
  } as const;

  test('problems and faults are above the figures, each with its next command', async () => {
    const warning = { ...PROBLEM, severity: 'warning', object: 'pool main', text: 'full in 2h' } as const;
    rest = { ...rest, problems: [PROBLEM, warning], faults: ['podwire-ipam: no answer'] };
    const page = await open();
    const items = await page
      .locator('#problems li')
      .evaluateAll((all) => all.map((each) => [each.getAttribute('class'), each.textContent]));
    expect(items).toEqual([
      ['failed', 'podwire-ipam: no answer'],
      ['failed', `node n1: silent ${MARKUP}next: podwirectl get nodes`],
      ['warning', 'pool main: full in 2hnext: podwirectl get nodes'],
    ]);
    rest = { ...rest, problems: [], faults: [] };
    await page.clock.runFor(REFRESH_MS);
    await expect.poll(() => page.locator('#problems').innerText()).toBe('');
    expect(complaints).toEqual([]);
  });

  test('tables are without their empty columns, and say when they are empty', async () => {
    rest = {
      ...rest,
      tables: [
        {
          columns: ['NODE', 'STATE', { right: 'PODS' }],
          rows: [
            ['n1', '', '3'],
            [MARKUP, '', ''],
          ],
          none: '',
        },
        { columns: ['POOL'], rows: [], none: 'pools: none' },
      ],
    };
    const page = await open();
    const cells = page.locator('#tables tr');
    await expect(
      cells.evaluateAll((rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent))),
    ).resolves.toEqual([
      ['NODE', 'PODS'],
      ['n1', '3'],
      [MARKUP, ''],
    ]);
    await expect(page.locator('#tables').innerText()).resolves.toContain('pools: none');
  });

  test('a button executes its action once, and the page reads again', async () => {
    rest = { ...rest, actions: [{ name: 'stop', text: 'Stop podwire-ipam' }] };
    const page = await open();
    rest = { ...rest, actions: [{ name: 'start', text: 'Start podwire-ipam' }] };
    await page.getByRole('button', { name: 'Stop podwire-ipam' }).click();
    await page.getByRole('button', { name: 'Start podwire-ipam' }).waitFor();
    expect(pressed).toEqual(['stop']);
    // The page has no action of this name.
    await page.getByRole('button', { name: 'Start podwire-ipam' }).click();
    await page.getByText('Start podwire-ipam: only GET, HEAD are allowed').waitFor();
  });
});

test('equal failures are one row with their number, in red', async () => {
  const refused = (order: number) =>
    addOf(order, { result: 'ADDRESS_REFUSED', message: `192.0.2.${order}: in no pool` });
  answer = () => Promise.resolve([refused(33), refused(32), refused(31), ...COMMANDS]);
  const page = await open();
  const rows = sectionOf(page, 'Failed').getByRole('button');
  await expect(rows.count()).resolves.toBe(2);
  await expect(rows.first().innerText()).resolves.toMatch(
    /ADDRESS_REFUSED\s+3 ×\s+192\.0\.2\.33: in no pool\s+default\/web-33, the last of 3/,
  );
  await expect(
    rows
      .first()
      .locator('.about')
      .evaluate((about) => getComputedStyle(about).color),
  ).resolves.toBe('rgb(179, 38, 30)');
  await rows.first().click();
  expect(await heading(page)).toBe('ADD of default/web-33');
});

test('on a phone a tap shows the steps, and they stay in view at a refresh', async () => {
  const page = await open({ viewport: { width: 360, height: 640 }, hasTouch: true });
  await sectionOf(page, 'Newest').getByRole('button', { name: 'default/web-19' }).tap();
  const visible = () =>
    page.evaluate(() => {
      const heading = document.getElementById('waterfall-heading')!.getBoundingClientRect();
      const step = document.querySelector('#steps tbody tr')!.getBoundingClientRect();
      return { top: Math.round(heading.top), isVisible: heading.top >= 0 && step.bottom <= innerHeight };
    });
  const before = await visible();
  expect(before.isVisible).toBe(true);
  rest = { ...rest, faults: ['podwire-ipam: no answer'] };
  answer = () => Promise.resolve([addOf(40), { ...FAILED, result: 'OTHER' }, ...COMMANDS]);
  await page.clock.runFor(REFRESH_MS);
  await page.getByText('default/web-40').first().waitFor();
  expect(await visible()).toEqual(before);
  expect(await heading(page)).toBe('ADD of default/web-19');
});

describe('live', () => {
  test('new ADDs appear, and the selection stays', async () => {
    const page = await open();
    await sectionOf(page, 'Failed').getByRole('button').click();
    answer = () => Promise.resolve([addOf(40), ...COMMANDS.filter((command) => command !== FAILED)]);
    await page.clock.runFor(REFRESH_MS);
    await sectionOf(page, 'Newest').getByText('default/web-40').waitFor();
    expect(await heading(page)).toBe('ADD of default/web-21');
    await expect(sectionOf(page, 'Failed').innerText()).resolves.toContain('None has failed.');
  });

  test('Pause stops it, and the second press continues', async () => {
    const page = await open();
    await page.getByRole('button', { name: 'Pause' }).click();
    let reads = 0;
    answer = () => {
      reads++;
      return Promise.resolve([addOf(40)]);
    };
    await page.clock.runFor(3 * REFRESH_MS);
    await expect(page.getByRole('status').textContent()).resolves.toBe('Paused');
    expect(reads).toBe(0);
    await page.getByRole('button', { name: 'Pause' }).click();
    await page.clock.runFor(REFRESH_MS);
    await page.getByText('Node node-1: 1 ADDs, 0 failed').waitFor();
  });

  test('a podwire-node that does not answer is stated, and the last figures stay', async () => {
    const page = await open();
    answer = () => Promise.reject(new Error('podwire-node: no answer'));
    await page.clock.runFor(REFRESH_MS);
    await page.getByText('No new data: podwire-node: no answer').waitFor();
    await expect(page.getByRole('button', { name: 'p50: 21.0 ms' }).count()).resolves.toBe(1);
    server.closeAllConnections();
    server.close();
    await page.clock.runFor(REFRESH_MS);
    await page.getByText('No new data: the program that serves this page has ended').waitFor();
  });
});

test('the keyboard reaches and selects every ADD, and keeps its place at a refresh', async () => {
  const page = await open();
  const reached: (string | null | undefined)[] = [];
  for (let count = 0; count < 16; count++) {
    await page.keyboard.press('Tab');
    reached.push(await focusedKey(page));
  }
  const kinds = reached.map((key) => key?.split(' ')[0]);
  const lists = ['slowest', 'failed', 'newest'].flatMap((kind) => kinds.filter((other) => other === kind));
  expect(kinds).toEqual([undefined, 'p50', 'p90', 'p99', 'max', ...lists]);
  expect(lists).toHaveLength(11);
  expect(await page.evaluate(() => getComputedStyle(document.activeElement!).outlineStyle)).toBe('solid');

  await page.keyboard.press('Enter');
  expect(await heading(page)).toBe('ADD of default/web-17');
  const key = await focusedKey(page);
  expect(key).toBe(`newest ${addOf(17).startedAt}/${addOf(17).containerId}`);
  answer = () => Promise.resolve([addOf(18), addOf(17)]);
  await page.clock.runFor(REFRESH_MS);
  await page.getByText('Node node-1: 2 ADDs').waitFor();
  expect(await focusedKey(page)).toBe(key);
  await page.keyboard.press('Shift+Tab');
  await page.keyboard.press('Space');
  expect(await heading(page)).toBe('ADD of default/web-18');
  await expect(page.locator('[aria-pressed=true]').count()).resolves.toBeGreaterThan(0);
});

/** The contrast of each text and of each phase with its background (WCAG 2), by its own description. */
function contrasts(page: Page): Promise<Record<string, number>> {
  return page.evaluate(() => {
    const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true })!;
    const luminance = (color: string): number => {
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
      const [red, green, blue] = [...context.getImageData(0, 0, 1, 1).data].map((byte) => {
        const share = byte / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
    };
    const behind = (from: Element | null): string => {
      for (let at = from; at; at = at.parentElement) {
        const { backgroundColor } = getComputedStyle(at);
        if (backgroundColor !== 'rgba(0, 0, 0, 0)') return backgroundColor;
      }
      return 'white';
    };
    const ratio = (a: number, b: number): number => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const found: Record<string, number> = {};
    for (const element of document.querySelectorAll('body *')) {
      const name = `${element.localName}.${element.className}`;
      const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent!.trim() !== '');
      if (isText) found[`text ${name}`] = ratio(luminance(getComputedStyle(element).color), luminance(behind(element)));
      if (element.classList.contains('part'))
        found[`shape ${name}`] = ratio(luminance(behind(element)), luminance(behind(element.parentElement)));
    }
    return found;
  });
}

describe.each(['light', 'dark'] as const)('%s', (colorScheme) => {
  test('every text and every phase stands out from its background', async () => {
    answer = () => Promise.resolve([EVERY_PHASE, FAILED]);
    const problem = { object: 'node n1', text: 'silent', next: 'podwirectl get nodes' };
    rest = {
      ...rest,
      faults: ['podwire-ipam: no answer'],
      problems: [
        { ...problem, severity: 'error' },
        { ...problem, severity: 'warning' },
      ],
      tables: [{ columns: ['NODE'], rows: [['n1']], none: '' }],
    };
    const page = await open({ colorScheme });
    answer = () => Promise.reject(new Error('no answer'));
    await page.clock.runFor(REFRESH_MS);
    await page.getByText('No new data').waitFor();
    const found = Object.entries(await contrasts(page));
    const count = (kind: string) => found.filter(([name]) => name.startsWith(`${kind} `)).length;
    expect(count('text')).toBeGreaterThan(10);
    expect(count('shape')).toBe(PHASES.length);
    expect(found.filter(([name, ratio]) => ratio < (name.startsWith('text') ? 4.5 : 3))).toEqual([]);
    const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    expect(background === 'rgb(255, 255, 255)').toBe(colorScheme === 'light');
  });
});

test.each([320, 360, 800, 1280, 1920])('at a width of %d px nothing is cut off', async (width) => {
  answer = () => Promise.resolve([EVERY_PHASE, ...COMMANDS]);
  const columns = Array.from({ length: 10 }, (_, index) => `COLUMN ${index}`);
  rest = {
    ...rest,
    faults: [`podwire-ipam: ${'no-answer'.repeat(20)}`],
    tables: [{ columns, rows: [columns], none: '' }],
  };
  const page = await open({ viewport: { width, height: 700 } });
  const cut = await page.evaluate(() =>
    [...document.querySelectorAll('body *')]
      .filter((element) => {
        const { left, right, width: own } = element.getBoundingClientRect();
        // The first and the last tick stand half beside their axis.
        const isCut = element.scrollWidth > element.clientWidth + 1 && !element.matches('.axis, .scroll');
        // A table is scrolled within its own place.
        if (element.closest('.scroll > *')) return false;
        return own > 0 && (left < 0 || right > window.innerWidth || (isCut && element.clientWidth > 0));
      })
      .map((element) => `${element.localName}.${element.className}: ${element.textContent.slice(0, 60)}`),
  );
  expect(cut).toEqual([]);
  const isBeside = await page.evaluate(
    () => document.getElementById('lists')!.getBoundingClientRect().left > window.innerWidth / 2,
  );
  expect(isBeside).toBe(width >= 1280);
});
