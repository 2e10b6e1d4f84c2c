import { describe, expect, test } from 'vitest';

import type { IpamConfig } from '../records/config.js';
import { TestView } from '../testing/test-view.js';
import { config, failureOf } from '../testing/records.js';
import { configRangeFaults, configVersion, getConfig, updateConfig } from './configuration.js';

const DEFAULTS = { strictAffinity: false, autoAllocateBlocks: true, maxBlocksPerHostCount: 0, cooldownSeconds: 0 };

function update(view: TestView, changes: Partial<IpamConfig>, resourceVersion = '') {
  return view.apply(updateConfig(view, { changes, resourceVersion }));
}

describe('while none is stored', () => {
  test('the defaults hold, and reading stores nothing', () => {
    const view = new TestView();
    expect(getConfig(view)).toEqual({ config: DEFAULTS, isStored: false });
    expect(view.snapshot()).toEqual([]);
  });

  test('a change stores the defaults with it', () => {
    const view = new TestView();
    const { listing, changed } = update(view, { cooldownSeconds: 60 });
    expect([changed, listing]).toEqual([true, { config: { ...DEFAULTS, cooldownSeconds: 60 }, isStored: true }]);
    expect(view.config()).toEqual(listing.config);
  });

  test('a requested default is stored, and an empty change stores nothing', () => {
    const view = new TestView();
    expect(update(view, {}).changed).toBe(false);
    expect(view.config()).toBeUndefined();
    expect(update(view, { strictAffinity: false }).changed).toBe(true);
    expect(view.config()).toEqual(DEFAULTS);
  });
});

describe('a change', () => {
  test('keeps unnamed fields, and is empty when it names the current values', () => {
    const view = new TestView([config({ strictAffinity: true, cooldownSeconds: 5 })]);
    expect(update(view, { maxBlocksPerHostCount: 3 }).listing.config).toEqual({
      strictAffinity: true,
      autoAllocateBlocks: true,
      maxBlocksPerHostCount: 3,
      cooldownSeconds: 5,
    });
    expect(updateConfig(view, { changes: { maxBlocksPerHostCount: 3 }, resourceVersion: '' }).changes).toEqual([]);
  });

  test('of the version that was read is made, of an older one refused, also when none was stored', () => {
    const view = new TestView();
    const version = configVersion(getConfig(view));
    const { listing } = update(view, { strictAffinity: false }, version);
    expect(configVersion(listing)).not.toBe(version);
    expect(failureOf(() => update(view, { cooldownSeconds: 1 }, version)).code).toBe('STALE_VERSION');
    expect(view.config()?.cooldownSeconds).toBe(0);
    update(view, { cooldownSeconds: 1 }, configVersion(listing));
    expect(view.config()?.cooldownSeconds).toBe(1);
  });

  test.each<[Partial<IpamConfig>, string[]]>([
    [{ autoAllocateBlocks: false }, ['neither claim']],
    [{ maxBlocksPerHostCount: 3 }, ['3 blocks']],
    [{ autoAllocateBlocks: false, maxBlocksPerHostCount: 3 }, ['neither claim', '3 blocks']],
  ])('to %j without strict affinity is refused with every reason', (changes, texts) => {
    const view = new TestView([config()]);
    const failure = failureOf(() => update(view, changes));
    expect(failure.code).toBe('CONFIG_CONTRADICTION');
    for (const text of texts) expect(failure.message).toContain(text);
    expect(view.config()).toEqual(DEFAULTS);
    expect(update(view, { ...changes, strictAffinity: true }).changed).toBe(true);
    expect(failureOf(() => update(view, { strictAffinity: false })).code).toBe('CONFIG_CONTRADICTION');
  });

  test('of a stored contradiction has to resolve it', () => {
    // Calico's reading of `{}`.
    const view = new TestView([config({ autoAllocateBlocks: false })]);
    expect(getConfig(view).config.autoAllocateBlocks).toBe(false);
    expect(failureOf(() => update(view, { cooldownSeconds: 1 })).code).toBe('CONFIG_CONTRADICTION');
    expect(update(view, { cooldownSeconds: 1, autoAllocateBlocks: true }).changed).toBe(true);
  });
});

test('numbers have ranges', () => {
  expect(configRangeFaults({ maxBlocksPerHostCount: 1_000_000, cooldownSeconds: 1200 })).toEqual([]);
  expect(configRangeFaults({ maxBlocksPerHostCount: 0, cooldownSeconds: 0 })).toEqual([]);
  expect(configRangeFaults({})).toEqual([]);
  expect(configRangeFaults({ maxBlocksPerHostCount: 1_000_001, cooldownSeconds: -1 })).toEqual([
    { field: 'maxBlocksPerHostCount', reason: 'is 1000001; it must be from 0 to 1000000' },
    { field: 'cooldownSeconds', reason: 'is -1; it must be from 0 to 1200' },
  ]);
  expect(configRangeFaults({ cooldownSeconds: 1.5 })).toHaveLength(1);
});
