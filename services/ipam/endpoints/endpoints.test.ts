import { endpointNameFaults } from '@podwire/shared/attachment/names';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { endpointKey, formatEndpointKey, makeEndpoint, type Endpoint } from '../records/endpoint.js';
import { TestView } from '../testing/test-view.js';
import type { RecordValue } from '../records/view.js';
import { attachment, foreignRecord, NOW_MS, poolRecord, prefix } from '../testing/records.js';
import { endpointsOfNode, listEndpoints, type EndpointFilter } from './endpoints.js';

/** Blocks of two pools; endpoints are stored with the earlier names of these. */
const BLOCKS = { p: '10.0.0.0/26', q: '10.1.0.0/26' };
const POOLS = [poolRecord('p', '10.0.0.0/16'), poolRecord('q', '10.1.0.0/16')];

const NONE: EndpointFilter = { nodeName: '', namespace: '', podName: '', poolName: '' };

// Names that are prefixes of each other, and that dashes could confuse.
const names = fc.constantFrom('a', 'a-b', 'a--b', 'a-k8s-b', 'b', 'k8s', 'cni');

const endpoints = fc
  .record({
    nodeName: names,
    pod: fc.option(fc.record({ namespace: fc.constantFrom('a', 'a-b', 'a0', 'default'), name: names }), {
      nil: undefined,
    }),
    containerId: fc.constantFrom('c', 'c-d', 'k8s', '0'),
    interfaceName: fc.constantFrom('eth0', 'a-b'),
    poolName: fc.constantFrom('p', 'q'),
  })
  .map(({ nodeName, pod, containerId, interfaceName, poolName }): Endpoint => {
    const identity = { attachment: attachment(containerId, { interfaceName }), nodeName, netns: undefined };
    const block = prefix(BLOCKS[poolName]);
    const address = { address: hostPrefix(block), block, poolName: 'former', sequenceNumber: 1n };
    return makeEndpoint({ ...identity, pod: pod && { ...pod, uid: '' }, createdAtMs: NOW_MS }, [address]);
  });

function record(value: Endpoint): RecordValue {
  return { kind: 'endpoint', key: endpointKey(value), value };
}

/** The same, as Calico's plugin writes it. */
function foreign(value: Endpoint): RecordValue {
  const { nodeName, pod, addresses } = value;
  const { key, ...rest } = foreignRecord('', {
    nodeName,
    podName: pod?.name ?? '',
    addresses: addresses.map(({ address }) => address),
  });
  return { ...rest, key: { ...key, ...endpointKey(value) } };
}

function keyText(value: Endpoint): string {
  return formatEndpointKey(endpointKey(value));
}

describe('a list', () => {
  test('has, over all its pages, each endpoint that matches once, in the order of the keys', () => {
    const filter = fc.record({
      nodeName: fc.option(names, { nil: '' }),
      namespace: fc.constantFrom('', '', 'a', 'a-b', 'default'),
      podName: fc.option(names, { nil: '' }),
      poolName: fc.constantFrom('', '', 'p'),
    });
    fc.assert(
      fc.property(
        fc.array(endpoints, { maxLength: 30 }),
        fc.array(endpoints.map(foreign), { maxLength: 5 }),
        filter,
        fc.integer({ min: 1, max: 5 }),
        (all, otherRecords, filter, limit) => {
          const view = new TestView([...POOLS, ...all.map(record), ...otherRecords]);
          const found: string[] = [];
          for (let after = ''; ;) {
            const { items, next } = listEndpoints(view, { ...filter, after, limit });
            expect(items.length).toBeLessThanOrEqual(limit);
            found.push(...items.map(({ key }) => formatEndpointKey(key)));
            for (const item of items)
              for (const { block, poolName } of item.kind === 'endpoint' ? item.value.addresses : [])
                expect(formatPrefix(block)).toBe(BLOCKS[poolName === 'p' ? 'p' : 'q']);
            if (next === '') break;
            expect(next > after).toBe(true);
            after = next;
          }
          const expected = [...view.allEndpointsAfter('')].filter(
            ({ key, kind, value }) =>
              (filter.nodeName === '' || value.nodeName === filter.nodeName) &&
              (filter.namespace === '' || key.namespace === filter.namespace) &&
              (filter.podName === '' || (kind === 'endpoint' ? value.pod?.name : value.podName) === filter.podName) &&
              (filter.poolName === '' ||
                (kind === 'endpoint' ? value.addresses[0]?.block : value.addresses[0])?.value ===
                  prefix(BLOCKS.p).value),
          );
          expect(found).toEqual(expected.map(({ key }) => formatEndpointKey(key)).sort());
          const ofNode = [...endpointsOfNode(view, 'a')];
          const expectedOfNode = [...view.allEndpointsAfter('')].filter(({ value }) => value.nodeName === 'a');
          expect(ofNode).toHaveLength(expectedOfNode.length);
        },
      ),
    );
  });

  test('ends a page after a bounded search, and continues from there', () => {
    const many = Array.from({ length: 5000 }, (_, i) => {
      const identity = { attachment: attachment(`c${String(i).padStart(5, '0')}`), nodeName: 'n1', pod: undefined };
      const block = prefix(i === 4900 ? BLOCKS.q : BLOCKS.p);
      const address = { address: hostPrefix(block), block, poolName: '', sequenceNumber: 1n };
      return makeEndpoint({ ...identity, netns: undefined, createdAtMs: NOW_MS }, [address]);
    });
    const sorted = many.map((value) => ({ kind: 'endpoint' as const, key: endpointKey(value), value }));
    const view = new TestView(POOLS);
    view.allEndpointsAfter = (after) => sorted.filter(({ key }) => formatEndpointKey(key) > after);
    const sizes: number[] = [];
    for (let after = ''; ;) {
      const { items, next } = listEndpoints(view, { ...NONE, poolName: 'q', after, limit: 10 });
      sizes.push(items.length);
      if (next === '') break;
      after = next;
    }
    expect(sizes).toEqual([0, 0, 1]);
  });

  test('of one node does not read endpoints of other nodes', () => {
    const on = (nodeName: string, containerId: string) =>
      makeEndpoint(
        { attachment: attachment(containerId), nodeName, pod: undefined, netns: undefined, createdAtMs: 0 },
        [],
      );
    const all = Array.from({ length: 500 }, (_, i) => on(`n${String(i).padStart(3, '0')}`, 'c'));
    const view = new TestView(all.map(record));
    const behind = view.allEndpointsAfter.bind(view);
    let lookedAt = 0;
    view.allEndpointsAfter = function* (after: string) {
      for (const endpoint of behind(after)) {
        lookedAt++;
        yield endpoint;
      }
    };
    expect([...endpointsOfNode(view, 'n250')]).toHaveLength(1);
    expect(lookedAt).toBeLessThan(10);
  });
});

describe('the name of an endpoint', () => {
  const part = fc.stringMatching(/^[ab]([ab-]{0,2}[ab])?$/);
  const identity = fc.record({ nodeName: names, containerId: part, interfaceName: part });
  const faultsOf = ({ attachment: named, pod }: Parameters<typeof endpointKey>[0]) => endpointNameFaults(named, pod);

  test('is unique to an attachment, where it is not refused', () => {
    const make = ({
      nodeName,
      containerId,
      interfaceName,
    }: {
      nodeName: string;
      containerId: string;
      interfaceName: string;
    }) => ({ attachment: attachment(containerId, { interfaceName }), nodeName, pod: undefined });
    fc.assert(
      fc.property(identity, identity, (a, b) => {
        const [first, second] = [make(a), make(b)];
        expect([first, second].flatMap(faultsOf)).toEqual([]);
        const same =
          a.nodeName === b.nodeName && a.containerId === b.containerId && a.interfaceName === b.interfaceName;
        expect(endpointKey(first).name === endpointKey(second).name).toBe(same);
      }),
      { numRuns: 2000 },
    );
  });

  test('cannot hold parts with a dash at an end, which it would confuse', () => {
    const of = (containerId: string, interfaceName: string) => ({
      attachment: attachment(containerId, { interfaceName }),
      nodeName: 'n',
      pod: undefined,
    });
    expect(endpointKey(of('a-', 'b'))).toEqual(endpointKey(of('a', '-b')));
    expect(faultsOf(of('a-', '-b')).map(({ field }) => field)).toEqual(['containerId', 'interfaceName']);
    expect(faultsOf(of('a-b', 'c-d'))).toEqual([]);
    const pod = { namespace: 'default', name: 'web', uid: '' };
    expect(faultsOf({ ...of('a-', 'b'), pod })).toEqual([]);
  });

  test('and its namespace are one text', () => {
    expect(
      keyText(
        makeEndpoint(
          { attachment: attachment('c'), nodeName: 'n', pod: undefined, netns: undefined, createdAtMs: 0 },
          [],
        ),
      ),
    ).toBe('default/n-cni-c-eth0');
  });
});
