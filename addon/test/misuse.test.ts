import { createRequire } from 'node:module';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { beforeAll, describe, expect, it } from 'vitest';

import {
  NamespaceClosedError,
  NetlinkError,
  openNamespace,
  type Namespace,
  type NftSet,
  type Step,
} from '../lib/index.js';
import { ADDON_FOLDER, codes, failureOf, link0, makePod, noLink, open, vethPair } from './ip.js';

setFlagsFromString('--expose-gc');
const collectGarbage: () => void = runInNewContext('gc');

/** A method called as from JavaScript, with unchecked arguments; its rejection. */
async function misuse(namespace: Namespace, method: string, ...args: unknown[]): Promise<unknown> {
  const found: unknown = Reflect.get(namespace, method);
  if (typeof found !== 'function') throw new Error(`no method ${method}`);
  return failureOf(Reflect.apply(found, namespace, args));
}

function codeOf(failure: unknown): unknown {
  return failure instanceof NetlinkError ? failure.code : failure;
}

const NO_SET: NftSet = { family: 'inet', table: 'none', name: 'none', key: ['ifname'] };

/** Every method that calls the kernel, with valid arguments and a known outcome. */
const METHODS: Readonly<Record<string, (namespace: Namespace) => Promise<unknown>>> = {
  batch: async (namespace) => codes(await namespace.batch([{ type: 'link.get', link: { index: 1 } }])),
  sequence: async (namespace) => codes(await namespace.sequence([{ type: 'link.get', link: { name: 'lo' } }])),
  links: async (namespace) => (await namespace.links()).map(({ name }) => name),
  addresses: async (namespace) => namespace.addresses(),
  routes: async (namespace) => namespace.routes(),
  rules: async (namespace) => (await namespace.rules({ family: 4 })).map(({ table }) => table),
  neighbours: async (namespace) => namespace.neighbours(),
  fdbEntries: async (namespace) => namespace.fdbEntries(),
  readSysctls: async (namespace) => namespace.readSysctls([['net', 'ipv4', 'ip_default_ttl']]),
  writeSysctls: async (namespace) =>
    codes(await namespace.writeSysctls([{ key: ['net', 'ipv4', 'ip_default_ttl'], value: '64' }])),
  // An error keeps its creator for its stack.
  deleteLink: async (namespace) => codeOf(await failureOf(namespace.deleteLink({ name: noLink }))),
  announceAddress: async (namespace) =>
    codeOf(await failureOf(namespace.announceAddress({ index: 2 ** 31 - 1, address: '192.0.2.1' }))),
  deleteConntrack: async (namespace) => namespace.deleteConntrack({ address: '192.0.2.1' }),
  connections: async (namespace) => [...(await namespace.connections(['192.0.2.1', 'fd00::1']))],
  deleteConnections: async (namespace) => namespace.deleteConnections([]),
  changeElements: async (namespace) =>
    (await namespace.changeElements([{ type: 'elements.add', set: NO_SET, elements: [{ key: ['a'] }] }])).applied,
  generation: async (namespace) => namespace.generation(),
  monitorTables: async (namespace) => (await namespace.monitorTables({ tables: [NO_SET] })).close(),
  monitorPackets: async (namespace) => (await namespace.monitorPackets({ group: 7, copyBytes: 64 })).close(),
  monitor: async (namespace) => (await namespace.monitor({ groups: ['links'] })).close(),
};

const EXPECTED: Readonly<Record<keyof typeof METHODS, unknown>> = {
  batch: ['ok'],
  sequence: ['ok'],
  links: ['lo'],
  addresses: [],
  routes: [],
  rules: [255, 254, 253],
  neighbours: [],
  fdbEntries: [],
  readSysctls: [{ ok: true, value: '64' }],
  writeSysctls: ['ok'],
  deleteLink: 'ENODEV',
  announceAddress: 'ENODEV',
  deleteConntrack: 0,
  connections: [],
  deleteConnections: 0,
  changeElements: false,
  generation: 1,
  monitorTables: undefined,
  monitorPackets: undefined,
  monitor: undefined,
};

describe.each(Object.entries(METHODS))('%s', (name, call) => {
  it('answers on an open namespace', async () => {
    expect(await call(await open(makePod().path))).toEqual(EXPECTED[name]);
  });

  it('answers on a namespace with other calls in flight', async () => {
    const namespace = await open(makePod().path);
    const inFlight = Array.from({ length: 20 }, () => namespace.links());
    expect(await call(namespace)).toEqual(EXPECTED[name]);
    expect((await Promise.all(inFlight)).flat()).toHaveLength(20);
  });

  it('completes on one that is closed meanwhile', async () => {
    const namespace = await openNamespace(makePod().path);
    const answer = call(namespace);
    await namespace.close();
    expect(await answer).toEqual(EXPECTED[name]);
  });

  it('completes on one that is dropped meanwhile, which is then released', async () => {
    const { path } = makePod();
    const start = async () => {
      const namespace = await openNamespace(path);
      return { answer: call(namespace), dropped: new WeakRef(namespace) };
    };
    const { answer, dropped } = await start();
    collectGarbage();
    expect(await answer).toEqual(EXPECTED[name]);
    await expect.poll(() => (collectGarbage(), dropped.deref()), { timeout: 20_000 }).toBeUndefined();
  });

  it('rejects on a closed one', async () => {
    const namespace = await openNamespace(makePod().path);
    await namespace.close();
    await namespace.close();
    // Methods whose answer is a failure do not show the cause of the rejection.
    const failure =
      name === 'deleteLink'
        ? failureOf(namespace.deleteLink({ name: 'lo' }))
        : name === 'announceAddress'
          ? failureOf(namespace.announceAddress({ index: 1, address: '::1' }))
          : failureOf(call(namespace));
    expect(await failure).toBeInstanceOf(NamespaceClosedError);
  });
});

describe('a hundred batches at once', () => {
  it('are all answered, each with its own answers', async () => {
    const [host, pod] = [await open(makePod().path), await open(makePod().path)];
    const batches = Array.from({ length: 100 }, (_, position) => {
      const name = `veth${position}`;
      return host.batch([vethPair(name, pod, name), { type: 'link.get', link: { name } }]);
    });
    const names = (await Promise.all(batches)).map(([, got]) => (got!.ok ? got!.link!.name : got!.error.code));
    expect(names).toEqual(Array.from({ length: 100 }, (_, position) => `veth${position}`));
  });

  it('carries a batch of a thousand requests', async () => {
    const namespace = await open(makePod().path);
    const outcomes = await namespace.batch(
      Array.from({ length: 1000 }, () => ({ type: 'link.get', link: { index: 1 } })),
    );
    expect(codes(outcomes)).toEqual(Array.from({ length: 1000 }, () => 'ok'));
  });
});

describe('arguments', () => {
  const link = { name: 'eth0' };
  const peer = { name: 'eth0', namespace: undefined };
  const vxlan = { type: 'link.add', kind: 'vxlan', name: 'vx', vni: 1, local: '10.0.0.1' };
  const ipip = { type: 'link.add', kind: 'ipip', name: 'ipip0' };
  const rule = { type: 'rule.add', source: '10.0.0.1/32', table: 100 };
  const fdb = { type: 'fdb.append', link, mac: 'ee:ee:ee:ee:ee:ee', destination: '10.0.0.1' };
  const tbf = { rateBytesPerSecond: 1000, burstBytes: 1500, limitBytes: 3000 };
  const qdisc = { type: 'qdisc.replace', link, handle: 1, tbf };
  const WRONG: readonly (readonly [string, unknown])[] = [
    ['requests[0]', null],
    ['requests[0].type', { type: 'link.paint' }],
    ['requests[0].type', { type: 'sysctl.write', key: ['net'], value: '1' }],
    ['requests[0].optional', { type: 'link.get', link, optional: 1 }],
    ['requests[0].within', { type: 'link.get', link, within: {} }],
    ['requests[0].kind', { type: 'link.add', kind: 'bridge', name: 'br0' }],
    ['requests[0].peer', { type: 'link.add', kind: 'veth', name: 'a' }],
    ['requests[0].peer.namespace', { type: 'link.add', kind: 'veth', name: 'a', peer }],
    ['requests[0].link', { type: 'link.get', link: { name: 'eth0', index: 1 } }],
    ['requests[0].link.index', { type: 'link.get', link: { index: 0 } }],
    ['requests[0].link.name', { type: 'link.get', link: { name: 'sixteen-letters-' } }],
    ['requests[0].link.name', { type: 'link.get', link: { name: '../x' } }],
    ['requests[0].mac', { type: 'link.set', link, mac: 'ee:ee:ee:ee:ee' }],
    ['requests[0].mtuBytes', { type: 'link.set', link, mtuBytes: 1450.5 }],
    ['requests[0].alias', { type: 'link.set', link, alias: 'ü'.repeat(128) }],
    ['requests[0].up', { type: 'link.set', link, up: 'yes' }],
    ['requests[0].address', { type: 'address.add', link, address: '10.0.0.1' }],
    ['requests[0].address', { type: 'address.add', link, address: '10.0.0.1/33' }],
    ['requests[0].address', { type: 'address.add', link, address: 'fe80::1%eth0/64' }],
    ['requests[0].gateway', { type: 'route.add', destination: '10.0.0.0/8', gateway: 'fe80::1' }],
    ['requests[0].table', { type: 'route.add', destination: '10.0.0.0/8', table: -1 }],
    ['requests[0].scope', { type: 'route.add', destination: '10.0.0.0/8', scope: 'galaxy' }],
    ['requests[0].source', { ...rule, source: undefined }],
    ['requests[0].source', { ...rule, source: '10.0.0.1' }],
    ['requests[0].table', { ...rule, table: undefined }],
    ['requests[0].table', { ...rule, table: 0 }],
    ['requests[0].priority', { ...rule, priority: 2 ** 32 }],
    ['requests[0].protocol', { ...rule, protocol: 256 }],
    ['requests[0].type', { ...rule, type: 'rule.replace' }],
    ['requests[0].handle', { ...qdisc, handle: 2 ** 16 }],
    ['requests[0].tbf', { ...qdisc, tbf: undefined }],
    ['requests[0].tbf.rateBytesPerSecond', { ...qdisc, tbf: { ...tbf, rateBytesPerSecond: 2 ** 53 } }],
    ['requests[0].tbf.burstBytes', { ...qdisc, tbf: { ...tbf, burstBytes: 0 } }],
    ['requests[0].tbf.limitBytes', { ...qdisc, tbf: { ...tbf, limitBytes: 2 ** 32 } }],
    ['requests[0].link', { ...qdisc, type: 'qdisc.get', link: undefined }],
    ['requests[0].mac', { type: 'neighbour.add', link, address: '10.0.0.1' }],
    ['requests[0].vni', { ...vxlan, vni: 2 ** 24 }],
    ['requests[0].vni', { ...vxlan, vni: undefined }],
    ['requests[0].port', { ...vxlan, port: 0 }],
    ['requests[0].local', { ...vxlan, local: undefined }],
    ['requests[0].local', { ...vxlan, local: '10.0.0.1/24' }],
    ['requests[0].parent', { ...vxlan, parent: 'eth0' }],
    ['requests[0].parent.index', { ...vxlan, parent: { index: '1' } }],
    ['requests[0].name', { ...vxlan, name: '' }],
    ['requests[0].txQueueLength', { ...vxlan, txQueueLength: -1 }],
    ['requests[0].txQueueCount', { ...vxlan, txQueueCount: 0 }],
    ['requests[0].rxQueueCount', { ...vxlan, rxQueueCount: 4097 }],
    ['requests[0].local', { ...ipip, local: 'fd00::1' }],
    ['requests[0].txQueueLength', { type: 'link.set', link, txQueueLength: '1000' }],
    ['requests[0].addressGeneration', { type: 'link.set', link, addressGeneration: 'dice' }],
    ['requests[0].link', { ...fdb, link: undefined }],
    ['requests[0].mac', { ...fdb, mac: undefined }],
    ['requests[0].destination', { ...fdb, destination: '10.0.0.1/32' }],
  ];

  it.each(WRONG)('%s is refused: %j', async (path, request) => {
    const namespace = await open();
    const failure = await misuse(namespace, 'batch', [request]);
    expect(failure).toMatchObject({ name: 'ArgumentError', path });
    expect(failure).toBeInstanceOf(TypeError);
  });

  it('are refused in all other methods too', async () => {
    const namespace = await open();
    const call = (method: string, ...args: unknown[]) => misuse(namespace, method, ...args);
    const step: Step = { type: 'link.get', link: { index: 1 } };
    expect(await call('batch', 'all')).toMatchObject({ path: 'requests' });
    expect(
      await call(
        'batch',
        Array.from({ length: 100_001 }, () => step),
      ),
    ).toMatchObject({ path: 'requests' });
    expect(await call('batch', [step], { timeoutMs: 0 })).toMatchObject({ path: 'options.timeoutMs' });
    expect(await call('sequence', [step, {}])).toMatchObject({ path: 'steps[1].type' });
    expect(await call('addresses', { index: 'eth0' })).toMatchObject({ path: 'filter.index' });
    expect(await call('routes', { family: 5 })).toMatchObject({ path: 'filter.family' });
    expect(await call('routes', { protocol: 256 })).toMatchObject({ path: 'filter.protocol' });
    expect(await call('routes', { destination: '10.65.0.1' })).toMatchObject({ path: 'filter.destination' });
    expect(await call('rules', { family: '4' })).toMatchObject({ path: 'filter.family' });
    expect(await call('fdbEntries', { index: 0 })).toMatchObject({ path: 'filter.index' });
    expect(await call('neighbours', { proxy: 'yes' })).toMatchObject({ path: 'filter.proxy' });
    expect(await call('links', { maxCount: 0 })).toMatchObject({ path: 'filter.maxCount' });
    expect(await call('addresses', { timeoutMs: 0 })).toMatchObject({ path: 'filter.timeoutMs' });
    expect(await call('readSysctls', [['net', '..', 'kernel']])).toMatchObject({ path: 'keys[0][1]' });
    expect(await call('writeSysctls', [{ key: ['net/ipv4'], value: '1' }])).toMatchObject({
      path: 'settings[0].key[0]',
    });
    expect(await call('writeSysctls', [{ key: ['net'], value: 1 }])).toMatchObject({ path: 'settings[0].value' });
    expect(await call('deleteLink', {})).toMatchObject({ path: 'link' });
    expect(await call('deleteConntrack', { address: '10.0.0.0/8' })).toMatchObject({ path: 'filter.address' });
    expect(await call('deleteConntrack', {})).toMatchObject({ path: 'filter.protocol' });
    expect(await call('changeElements', [{ type: 'elements.move' }])).toMatchObject({ path: 'changes[0].type' });
    expect(await call('changeElements', [{ type: 'elements.add' }])).toMatchObject({ path: 'changes[0].set' });
    const change = (set: object) => call('changeElements', [{ type: 'elements.add', set, elements: [] }]);
    expect(await change({ ...NO_SET, key: ['mark'] })).toMatchObject({ path: 'changes[0].set.key[0]' });
    expect(await change({ ...NO_SET, family: 'ip5' })).toMatchObject({ path: 'changes[0].set.family' });
    expect(await call('announceAddress', { index: 0, address: '192.0.2.1' })).toMatchObject({
      path: 'announcement.index',
    });
    expect(await call('announceAddress', { index: 1, address: 'fe80::1%lo' })).toMatchObject({
      path: 'announcement.address',
    });
    expect(await call('announceAddress', { index: 1, address: '::1', router: 1 })).toMatchObject({
      path: 'announcement.router',
    });
    expect(await call('monitor', { groups: ['rumours'] })).toMatchObject({ path: 'options.groups[0]' });
    for (const gatherMs of [-1, 1001, 0.5, '5']) {
      expect(await call('monitor', { groups: ['links'], gatherMs })).toMatchObject({ path: 'options.gatherMs' });
    }
    expect(await failureOf(Reflect.apply(openNamespace, undefined, [7]))).toMatchObject({ path: 'path' });
  });

  it('that name a closed namespace are refused', async () => {
    const [host, pod] = [await open(), await openNamespace(makePod().path)];
    await pod.close();
    expect(await failureOf(host.batch([vethPair(link0, pod)]))).toMatchObject({ path: 'requests[0].peer.namespace' });
  });
});

describe('the compiled addon', () => {
  let own: Record<string, (...args: unknown[]) => unknown>;

  beforeAll(async () => {
    own = await createRequire(import.meta.url)('node-gyp-build')(ADDON_FOLDER).openNamespace(null);
  });

  const options = { sequential: true, timeoutMs: 1000 };
  const ruleFields = { source: '10.0.0.1', sourceLengthBits: 32, table: 100, priority: null, protocol: null };
  const rule = { op: 'rule', verb: 'add', optional: false, within: null, ...ruleFields };
  const tbf = { rateBytesPerSecond: 2 ** 53 + 2, burstBytes: 1, limitBytes: 1 };
  const qdisc = { op: 'qdisc', verb: 'replace', optional: false, within: null, handle: 1, tbf };
  const get = { op: 'link.get', optional: false, within: null, link: { index: 1, name: null } };
  const MONITOR_ARGUMENTS = 'groups, gatherMs, onEvents: must be an array, a number, a function';
  const TABLE_ARGUMENTS = 'tables, gatherMs, onEvents: must be an array, a number, a function';
  const set = { family: 1, table: 't', name: 's', key: ['ifname'], data: [], intervals: false };
  const change = { set, deletes: false, elements: '' };
  const noFilter = { family: 4, address: null, protocol: null, destinationPorts: [] };
  /** An entry without an identity, that says it has this size. */
  const packed = (size: number) => Buffer.from([0, 0, 0, size, 4, ...new Uint8Array(35)]);
  const WRONG: readonly (readonly [string, string, unknown[]])[] = [
    ['steps: must be an array', 'run', [null, options]],
    ['steps[0]: must be an object', 'run', [[7], options]],
    ['steps[0].within: must be an open namespace', 'run', [[{ ...get, within: undefined }], options]],
    ['steps[0].within: must be an open namespace', 'run', [[{ ...get, within: {} }], options]],
    ['steps[0].optional: must be true or false', 'run', [[{ ...get, optional: undefined }], options]],
    ['steps[0].op: must be a known operation', 'run', [[{ ...get, op: 'link.paint' }], options]],
    ['steps[0].link: must be an object', 'run', [[{ ...get, link: undefined }], options]],
    ['steps[0].link.index: must be a whole number of 32 bits', 'run', [[{ ...get, link: { name: 'lo' } }], options]],
    ['steps[0].link.name: must be a string', 'run', [[{ ...get, link: { index: 1 } }], options]],
    [
      'steps[0].readPrevious: must be true or false',
      'run',
      [[{ op: 'sysctl.write', optional: false, within: null, path: 'net', value: '' }], options],
    ],
    ['options: must be an object', 'run', [[get]]],
    [
      'steps: must be netlink in one namespace',
      'run',
      [
        [{ op: 'sysctl.write', optional: false, within: null, path: 'net', value: '', readPrevious: false }],
        { sequential: false, timeoutMs: 1 },
      ],
    ],
    ['filter: must be an object', 'dumpLinks', []],
    ['filter.family: must be a whole number of 32 bits', 'dumpLinks', [{}]],
    ['filter.family: must be a whole number of 32 bits', 'dumpRoutes', [{}]],
    ['filter.family: must be a whole number of 32 bits', 'dumpRules', [{}]],
    ['steps[0].verb: must be add, replace, append or delete', 'run', [[{ ...rule, verb: 'move' }], options]],
    ['steps[0].source: must be an IP address', 'run', [[{ ...rule, source: 'pod' }], options]],
    ['steps[0].priority: must be a whole number of 32 bits', 'run', [[{ ...rule, priority: undefined }], options]],
    ['steps[0].tbf.rateBytesPerSecond: must be a whole number of 53 bits', 'run', [[qdisc], options]],
    ['steps[0].tbf: must be an object', 'run', [[{ ...qdisc, tbf: 7 }], options]],
    ['paths[1]: must be a string', 'readSysctls', [['net', 7]]],
    ['link.index: must be a whole number of 32 bits', 'deleteLink', [{}]],
    ['filter: must be an object', 'deleteConntrack', ['pod']],
    ['filter.address: must be an IP address', 'deleteConntrack', [{ address: 'pod' }]],
    ['filter.family: must be 4 or 6', 'deleteConntrack', [{ ...noFilter, family: 0 }]],
    ['filter.protocol: must be a number', 'deleteConntrack', [{ ...noFilter, destinationPorts: [53] }]],
    ['filter.destinationPorts: must be an array', 'deleteConntrack', [{ ...noFilter, destinationPorts: null }]],
    [
      'filter.destinationPorts: must be an array of numbers',
      'deleteConntrack',
      [{ ...noFilter, destinationPorts: ['x'] }],
    ],
    ['addresses: must be an array', 'listConnections', ['pod']],
    ['addresses[1]: must be an IP address', 'listConnections', [['192.0.2.1', 'pod']]],
    ['addresses[0]: must be an IP address', 'listConnections', [[7]]],
    ['connections: must be a buffer of connections', 'deleteConnections', [[]]],
    ['connections: must be a buffer of connections', 'deleteConnections', [Buffer.alloc(39)]],
    ['connections: must be a buffer of connections', 'deleteConnections', [packed(41)]],
    ['connections: must be a buffer of connections', 'deleteConnections', [packed(39)]],
    // The kernel would delete all entries.
    ['connections: must be a buffer of connections', 'deleteConnections', [packed(40)]],
    ['changes: must be an array', 'changeElements', [{}]],
    ['changes[0]: must be an object', 'changeElements', [[7]]],
    ['changes[0].set: must be an object', 'changeElements', [[{ ...change, set: null }]]],
    ['changes[0].set.key: must be types of fields', 'changeElements', [[{ ...change, set: { ...set, key: ['x'] } }]]],
    ['changes[0].set.key: must be at least one type', 'changeElements', [[{ ...change, set: { ...set, key: [] } }]]],
    ['changes[0].elements: must be a string', 'changeElements', [[{ ...change, elements: null }]]],
    ['changes[0].set.name: must be a string', 'changeElements', [[{ ...change, set: { ...set, name: undefined } }]]],
    [TABLE_ARGUMENTS, 'monitorTables', [[], 0]],
    [TABLE_ARGUMENTS, 'monitorTables', ['inet', 0, () => undefined]],
    ['log.copyBytes: must be a whole number of 32 bits', 'monitorPackets', [{ group: 7 }, 0, () => undefined]],
    ['tables[0].table: must be a string', 'monitorTables', [[{ family: 1 }], 0, () => undefined]],
    ['announcement: must be an object', 'announceAddress', ['::1']],
    ['announcement.address: must be an IP address', 'announceAddress', [{ index: 1, address: 'lo', router: false }]],
    ['announcement.router: must be true or false', 'announceAddress', [{ index: 1, address: '::1' }]],
    [MONITOR_ARGUMENTS, 'monitor', [[1], 0]],
    [MONITOR_ARGUMENTS, 'monitor', [[1], 'soon', () => undefined]],
  ];

  it.each(WRONG)('throws “%s” from %s', (message, method, args) => {
    expect(() => own[method]!(...args)).toThrow(new TypeError(message));
  });

  it.each(['a', 'a\0', 'a\0\0', 'a\0perhaps\0\0', 'a\0\0\0b'])('refuses the text %j of elements', async (elements) => {
    expect(await failureOf(Promise.resolve(own.changeElements!([{ ...change, elements }])))).toMatchObject({
      errno: 22,
      text: expect.stringMatching(/^changes\[0\]\.elements.*: must be/),
    });
  });

  it('cannot be used to construct a namespace', () => {
    expect(() => Reflect.construct(own.constructor, [])).toThrow('a namespace is made by openNamespace');
    expect(() => Reflect.apply(own.run!, {}, [[], options])).toThrow();
  });
});
