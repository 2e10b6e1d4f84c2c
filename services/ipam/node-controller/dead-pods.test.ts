import { describe, expect, test } from 'vitest';

import { endpointKey, makeEndpoint, type Endpoint } from '../records/endpoint.js';
import { attachment, NOW_MS, prefix } from '../testing/records.js';
import { attachmentsOf, isApiPod, podKey } from './dead-pods.js';

const UID = '0a1b2c3d-0000-4000-8000-00000000000f';
const netns = { bootId: UID, inode: 4_026_532_000n };

interface Given {
  readonly containerId?: string;
  readonly uid?: string;
  readonly sequenceNumber?: bigint;
  readonly inode?: bigint;
}

function endpoint({ containerId = 'c1', uid = UID, sequenceNumber = 7n, inode = netns.inode }: Given = {}): Endpoint {
  const pod = { namespace: 'default', name: 'web-0', uid };
  const identity = { attachment: attachment(containerId), nodeName: 'n1', pod, createdAtMs: NOW_MS };
  const held = { address: prefix('10.0.0.1/32'), block: prefix('10.0.0.0/26'), poolName: 'p', sequenceNumber };
  return makeEndpoint({ ...identity, netns: { ...netns, inode } }, [held]);
}

const read = (value: Endpoint) => attachmentsOf(endpointKey(value), value);

describe('a pod of the API server', () => {
  test.each([
    [UID, true],
    // A static pod: the kubelet's hash of its file.
    ['0a1b2c3d00004000800000000000000f', false],
    // The runtime did not pass it.
    ['', false],
    ['hdishd83djaidwnduwk28bcsb', false],
  ])('is known by its UID: %j is %j', (uid, expected) => {
    expect(isApiPod(endpoint({ uid }))).toBe(expected);
    expect(read(endpoint({ uid }))).toHaveLength(expected ? 1 : 0);
  });

  test('outside of Kubernetes there is none', () => {
    expect(isApiPod({ ...endpoint(), pod: undefined })).toBe(false);
  });
});

test('an attachment has what its release compares', () => {
  expect(read(endpoint())).toMatchObject([
    {
      nodeName: 'n1',
      namespace: 'default',
      podName: 'web-0',
      addresses: ['10.0.0.1'],
      releases: [{ handleId: 'net.c1', sequenceNumber: 7n, netns }],
    },
  ]);
  expect(podKey({ namespace: 'default', name: 'web-0' })).toBe('default/web-0');
});

test('the identity differs by container, allocation and namespace', () => {
  const variants = [{}, { containerId: 'c2' }, { sequenceNumber: 8n }, { inode: 5n }];
  const identities = variants.flatMap((given) => read(endpoint(given)).map(({ identity }) => identity));
  expect(new Set(identities).size).toBe(variants.length);
});

test('endpoints that were replaced count, but not endpoints of other writers', () => {
  const earlier = endpoint({ containerId: 'c0' });
  const foreign = { kind: 'foreignEndpoint' as const, value: { ...FOREIGN, podName: 'web-0' } };
  const value = { ...endpoint(), replaced: [{ kind: 'endpoint' as const, value: earlier }, foreign] };
  expect(read(value).map(({ releases }) => releases[0]!.handleId)).toEqual(['net.c1', 'net.c0']);
});

const FOREIGN = {
  nodeName: 'n1',
  containerId: 'cx',
  interfaceName: 'eth0',
  addresses: [],
  uid: '',
  createTimeMs: undefined,
  mac: '',
  hostInterfaceName: '',
  stored: '{}',
};
