import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { Plugin } from '../testing/plugin.js';

const READY = { exitCode: 0, stdout: '' };

let plugin: Plugin;

beforeEach(() => {
  plugin = new Plugin({ delServiceTimeoutMs: 200 });
});

afterEach(async () => {
  await plugin.end();
  expect(plugin.script.unusedFaults()).toEqual([]);
});

/** Each call uses another network, as answers are kept for a second. */
let asked = 0;
const status = (config = {}, rest = {}) =>
  plugin.run('STATUS', { config: { cniVersion: '1.1.0', name: `net${++asked}`, ...config }, rest });
const strictStatus = (config = {}) => status(config, { isStrict: true });
const error = async (config = {}) => {
  const answer = await status(config);
  expect(answer.exitCode).toBe(1);
  return JSON.parse(answer.stdout);
};
/** STATUS has a shorter time limit than a busy machine may need, and is then repeated. */
const BUSY = { interval: 10, timeout: 20_000 };
const untilReady = () => vi.waitFor(async () => expect(await status()).toEqual(READY), BUSY);

describe('STATUS', () => {
  test('is ready when podwire-ipam and the dataplane serve and there is an address', async () => {
    await plugin.start();
    await untilReady();
  });

  test.each([
    ['podwire-ipam', 'dataplane', /^podwire-ipam at unix:.* is not reached within/],
    ['a dataplane that serves', 'ipam', /^the node's dataplane is not serving: see the log of podwire-node$/],
  ] as const)('is 50 without %s', async (_, present, msg) => {
    await plugin.start(present);
    const expected = { code: 50, msg: expect.stringMatching(msg) };
    await vi.waitFor(async () => expect(await error()).toMatchObject(expected), BUSY);
  });

  test('of podwire-ipam is ready without a dataplane that serves', async () => {
    await plugin.start('ipam');
    const rest = { plugin: 'podwire-ipam' };
    await vi.waitFor(async () => expect(await status({}, rest)).toEqual(READY), BUSY);
  });

  test('names podwire-ipam and the dataplane when neither serves', async () => {
    await plugin.journal.load();
    expect(await error()).toMatchObject({
      code: 50,
      msg: expect.stringMatching(/podwire-ipam .*the node's dataplane /),
    });
  });

  test('asks for the pods of the network: families and pools of the configuration, on the configured node', async () => {
    await plugin.start();
    const explained = async (config: object) => {
      await vi.waitFor(async () => expect(await strictStatus(config)).toEqual(READY), BUSY);
      return plugin.script.requests.findLast(({ method }) => method === 'ExplainAllocation')?.request;
    };
    const ipam = { assign_ipv4: 'false', assign_ipv6: 'true', ipv4_pools: ['a'], ipv6_pools: ['fd00::/48'] };
    const { IP_FAMILY_IPV6: family } = IpFamily;
    expect(await explained({ ipam, nodename: 'node-9' })).toMatchObject({
      request: {
        nodeName: 'node-9',
        families: [family],
        pools: ['fd00::/48'],
        poolChoices: [{ pool: 'fd00::/48', family, isConfigured: true }],
      },
      // A pool may be for the pods of some namespaces only.
      anyNamespace: true,
    });
    // Values that ADD refuses are left out; ADD reports them.
    expect(await explained({ ipam: { ...ipam, assign_ipv4: 4 }, nodename: 'Node_9' })).toMatchObject({
      request: { nodeName: 'node-1', families: [], pools: [] },
    });
  });

  test('is 50 while the datastore does not answer', async () => {
    await plugin.start();
    const failure = new Failure('STORE_UNAVAILABLE', 'the datastore was not read yet');
    await vi.waitFor(async () => {
      if (plugin.script.unusedFaults().length === 0) plugin.script.failNext('ExplainAllocation', failure);
      expect(await error()).toMatchObject({ code: 50, msg: expect.stringContaining('not read yet') });
    }, BUSY);
  });

  test('is 51 while pending releases are in memory only', async () => {
    await plugin.start('ipam');
    plugin.store.broken = 'full';
    expect(await plugin.run('DEL')).toEqual(READY);
    expect(await error()).toMatchObject({
      code: 51,
      msg: expect.stringMatching(/1 entry .*full.*the node's dataplane/),
    });
    plugin.store.broken = 'no';
    await plugin.journal.retryStorage();
    expect(await error()).toMatchObject({ code: 50 });
  });

  test('is 51 while the journal cannot be read', async () => {
    plugin.store.broken = 'gone';
    await plugin.start();
    expect(await error()).toMatchObject({ code: 51, msg: expect.stringContaining('cannot be read') });
  });

  test('queries the services once for concurrent requests', async () => {
    await plugin.start();
    await Promise.all(Array.from({ length: 10 }, () => status({ name: 'one' })));
    const asks = () => plugin.script.calls.filter((call) => call.startsWith('ExplainAllocation'));
    await plugin.script.untilCalled('ExplainAllocation');
    expect(asks()).toHaveLength(1);
  });
});

describe('STATUS of a node that was ready', () => {
  beforeEach(async () => {
    await plugin.start();
    await untilReady();
  });

  test('is evaluated strictly for podwirectl', async () => {
    await plugin.stopServices();
    const answer = await strictStatus();
    expect(JSON.parse(answer.stdout)).toMatchObject({
      code: 50,
      msg: expect.stringMatching(/podwire-ipam .*the node's dataplane /),
    });
  });

  test('stays ready while the pools are exhausted: the ADD reports that', async () => {
    for (let count = 0; count < 64; count++) {
      plugin.ipam.put({ network: 'net', containerId: `c${count}`, interfaceName: 'eth0' });
    }
    expect(await status({ name: 'net' })).toEqual(READY);
    const { stdout } = await plugin.run('ADD', { variables: { CNI_CONTAINERID: 'c64' } });
    expect(JSON.parse(stdout)).toMatchObject({ code: 11, msg: expect.stringContaining('has no address left') });
  });

  test('stays ready while podwire-ipam hangs, without waiting for it', async () => {
    const letGo = plugin.script.hold('ExplainAllocation');
    expect(await status()).toEqual(READY);
    letGo();
  });

  test('stays ready while the journal cannot be stored: metrics and log report that', async () => {
    plugin.store.broken = 'full';
    plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link delete: EBUSY'));
    expect(await plugin.run('DEL')).toEqual(READY);
    expect(plugin.journal.fault).toBeDefined();
    expect(await status()).toEqual(READY);
    plugin.store.broken = 'no';
    await plugin.journal.retryStorage();
  });
});

test.each(['0.4.0', '1.0.0'])('STATUS is refused in version %s, which does not have it', async (cniVersion) => {
  expect(await error({ cniVersion })).toMatchObject({
    code: 1,
    msg: expect.stringContaining('STATUS requires CNI 1.1.0'),
  });
});
