import { expect, test } from 'vitest';

import { failed, judgeBroken, reasonsOf } from './testing/sound-plugin.js';

/** The kit's own oracle: a plugin that breaks one rule fails the cases of that rule, and no other cases. */

const LIFE = ['add', 'del', 'check', 'chain', 'gc', 'status', 'error'];
const FAULTS = ['version', 'env', 'config', 'error'];

/** Cases of both positions in a chain. */
const both = (id: string) => [`${id}.chained.1.1.0`, `${id}.native.1.1.0`];
const DEL_WITHOUT_NETNS = ['del.netns.absent', 'del.netns.dead', 'del.netns.empty'];

test('a sound plugin passes everything, in every version', { timeout: 1_800_000 }, async () => {
  const verdicts = await judgeBroken({ flaw: '', versions: ['0.2.0', '0.3.1', '0.4.0', '1.0.0', '1.1.0'], only: [] });
  const unpassed = verdicts.filter(({ status }) => status !== 'pass');
  expect(
    unpassed.map(({ id }) => id),
    reasonsOf(verdicts),
  ).toEqual([]);
  expect(verdicts.length).toBeGreaterThan(120);
});

test.each<[flaw: string, only: readonly string[], expected: readonly string[]]>([
  ['wrong-result-version', LIFE, both('add.form')],
  ['ip-version-kept', ['add', 'check', 'chain'], both('add.form')],
  ['wrong-index', ['add', 'check', 'chain'], both('add.form')],
  ['wrong-mac', ['add', 'check', 'chain'], both('add.kernel')],
  ['no-sandbox', ['add', 'check', 'chain'], both('add.kernel')],
  ['route-not-made', ['add', 'check', 'gc'], [...both('add.kernel'), ...both('check'), 'gc.spares']],
  ['drops-previous', ['add', 'chain', 'check'], ['chain.passes-on.1.1.0']],
  ['same-address', ['add', 'storm'], ['add.distinct', 'storm']],
  ['two-documents', ['add.form.native'], ['add.form.native.1.1.0']],
  [
    'replaces-interface',
    ['add', 'del'],
    ['add.failed.keeps-nothing', 'add.interface-exists', 'add.interface-of-another', 'add.twice'],
  ],
  ['del-needs-netns', ['del'], DEL_WITHOUT_NETNS],
  ['deletes-foreign', ['del'], ['del.foreign.container', 'del.foreign.interface']],
  ['keeps-lease', ['del'], [...both('del'), 'del.interface-gone', ...DEL_WITHOUT_NETNS, 'del.thrice']],
  ['keeps-link', ['del'], [...both('del'), 'del.thrice']],
  [
    'strict-del',
    ['del'],
    [
      'del.foreign.container',
      'del.foreign.interface',
      'del.interface-gone',
      ...DEL_WITHOUT_NETNS,
      'del.thrice',
      'del.unknown',
    ],
  ],
  ['talks', ['del.native'], ['del.native.1.1.0']],
  ['check-blind', ['check'], ['check.deleted', 'check.lost.address', 'check.lost.link', 'check.lost.route']],
  ['check-sees-links-only', ['check'], ['check.lost.address', 'check.lost.route']],
  ['check-misses-route', ['check'], ['check.lost.route']],
  ['gc-takes-all', ['gc', 'status'], ['gc.spares']],
  ['gc-does-nothing', ['gc', 'status'], ['gc.collects.empty', 'gc.collects.list']],
  ['status-fails', ['gc', 'status'], ['status', 'status.empty-variables']],
  ['no-echo', FAULTS, ['version.echo']],
  ['lists-nothing', ['version.form', 'version.without-input'], ['version.form', 'version.without-input']],
  ['decode-code', ['config', 'version'], ['config.binary', 'config.empty', 'config.no-json']],
  ['first-variable-only', ['env'], ['add', 'check', 'del'].map((verb) => `env.missing.${verb}.several`)],
  [
    'container-id-unchecked',
    ['env'],
    ['dash', 'dot', 'slash', 'space'].map((character) => `env.container-id.${character}`),
  ],
  ['error-without-version', FAULTS, ['error.version']],
  ['error-reserved-code', ['config.name.empty'], ['config.name.empty']],
  ['error-is-text', ['config.name.empty'], ['config.name.empty']],
  ['error-status-zero', ['config.name.empty'], ['config.name.empty']],
])('%s: fails the cases of its rule, and no other cases', { timeout: 900_000 }, async (flaw, only, expected) => {
  // The leftovers of the broken plugin do not disappear, and so are not waited for as long.
  const verdicts = await judgeBroken({ flaw, only, trial: { settlesWithinMs: 5_000 } });
  expect(failed(verdicts), reasonsOf(verdicts)).toEqual([...expected].sort());
  // The fault is found by a case, not by a failure of the kit.
  expect(verdicts.filter(({ status }) => status === 'error')).toEqual([]);
});

test('a verb in a version that does not have it fails its case', { timeout: 600_000 }, async () => {
  const verdicts = await judgeBroken({ flaw: 'any-verb', versions: ['0.2.0', '1.1.0'], only: ['check.too-old'] });
  expect(failed(verdicts)).toEqual(['check.too-old.0.2.0']);
});

test('a plugin that ignores port mappings fails the cases of that capability', { timeout: 600_000 }, async () => {
  const capabilities = { portMappings: true };
  const verdicts = await judgeBroken({ flaw: '', capabilities, only: ['port-mappings', 'add'] });
  const impossible = ['address', 'port', 'protocol'].map((fault) => `port-mappings.impossible.${fault}`);
  expect(failed(verdicts), reasonsOf(verdicts)).toEqual([...impossible, 'port-mappings.tcp', 'port-mappings.udp']);
});

test('an unknown case is an error', async () => {
  await expect(judgeBroken({ flaw: '', only: ['nonsense'] })).rejects.toThrow('there is no case nonsense');
});
