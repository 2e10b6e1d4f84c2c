import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { keys } from '../../engine/testing/stores.js';
import { decodeRecord } from './registry.js';

const KEY = { namespace: 'default', name: 'n1-k8s-web-eth0' };

/** The fields read from an endpoint of Calico's own plugin. */
function read(spec: Record<string, unknown>) {
  const stored = { kind: 'WorkloadEndpoint', metadata: { name: KEY.name, namespace: KEY.namespace }, spec };
  const value = Buffer.from(JSON.stringify(stored));
  const { record } = decodeRecord(keys.endpoints + KEY.name, { kind: 'endpoint', key: KEY }, value);
  if (record.kind !== 'foreignEndpoint') throw new Error('it is not another writer’s');
  return record;
}

describe('an endpoint of another writer', () => {
  test('has node, container, pod and addresses', () => {
    const spec = { node: 'n1', containerID: 'c1', pod: 'web', ipNetworks: ['10.0.0.1/32', 'fd00::c/128'] };
    const foreign = read(spec);
    expect(foreign).toMatchObject({ key: KEY, value: { nodeName: 'n1', containerId: 'c1', podName: 'web' } });
    expect(foreign.value.addresses.map(formatPrefix)).toEqual(['10.0.0.1/32', 'fd00::c/128']);
  });

  // Compared as texts, live addresses looked unused, and were released (projectcalico/calico#5044).
  test.each(['fd00::c/128', 'FD00::C/128', 'fd00:0:0:0:0:0:0:c/128', 'fd00:0000::000c/128', 'fd00::c'])(
    'has the same address in each notation: %s',
    (text) => {
      expect(read({ ipNetworks: [text] }).value.addresses.map(formatPrefix)).toEqual(['fd00::c/128']);
    },
  );

  test.each([[undefined], [null], ['10.0.0.1'], [[7, '', 'x', '10.0.0.0/24']]])(
    'is read although its addresses are invalid: %j',
    (ipNetworks) => {
      expect(read({ node: 'n1', ipNetworks }).value).toMatchObject({ nodeName: 'n1', addresses: [] });
    },
  );
});
