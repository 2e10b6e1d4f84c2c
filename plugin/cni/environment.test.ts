import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { parseArgs } from './environment.js';

const POD = { namespace: 'default', name: 'web-0', uid: 'u-1' };
const NOTHING_ASKED = { addresses: undefined, mac: undefined };
const PAIRS = [
  'IgnoreUnknown=1',
  'K8S_POD_NAMESPACE=default',
  'K8S_POD_NAME=web-0',
  'K8S_POD_INFRA_CONTAINER_ID=c',
  'K8S_POD_UID=u-1',
  'COLOUR=blue',
];

describe('CNI_ARGS', () => {
  test('name the pod, in any order', () => {
    const shuffled = fc.shuffledSubarray(PAIRS, { minLength: PAIRS.length });
    fc.assert(
      fc.property(shuffled, (pairs) => {
        expect(parseArgs(pairs.join(';'))).toEqual({ pod: POD, argsRequest: NOTHING_ASKED, faults: [] });
      }),
      { seed: 20_261_121 },
    );
  });

  test.each([
    ['', undefined],
    [';;', undefined],
    ['K8S_POD_NAME=web-0', undefined],
    ['K8S_POD_NAMESPACE=default;K8S_POD_NAME=', undefined],
    ['IgnoreUnknown=true;K8S_POD_NAME=quirky_turing', undefined],
    ['K8S_POD_NAMESPACE=a;K8S_POD_NAME=b', { namespace: 'a', name: 'b', uid: '' }],
    ['IgnoreUnknown=TRUE;X=a=b', undefined],
  ])('%j are valid', (text, pod) => {
    expect(parseArgs(text)).toEqual({ pod, argsRequest: NOTHING_ASKED, faults: [] });
  });

  test.each([
    [
      'IP=10.0.0;MAC=x',
      ['IP has "10.0.0", which is not an IP address', 'MAC is "x", which is not a unicast MAC address'],
    ],
    ['IP=10.0.0.1,10.0.0.2', ['IP has two IPv4 addresses; an interface gets one of each family']],
    ['X', ['holds "X", which is not of the form KEY=VALUE']],
    ['=x', ['holds "=x", which is not of the form KEY=VALUE']],
    ['X=1', ['has the unknown keys X; send IgnoreUnknown=1 to have them ignored']],
    ['IgnoreUnknown=0;X=1', ['has the unknown keys X; send IgnoreUnknown=1 to have them ignored']],
    ['IgnoreUnknown=maybe;X=1', ['IgnoreUnknown must be 1, true, 0 or false']],
    [
      'K8S_POD_NAMESPACE=a.b;K8S_POD_NAME=A',
      [
        'K8S_POD_NAMESPACE is not a valid name of a Kubernetes namespace',
        'K8S_POD_NAME is not a valid name of a Kubernetes pod',
      ],
    ],
    [`K8S_POD_NAMESPACE=a;K8S_POD_NAME=${'x'.repeat(254)}`, ['K8S_POD_NAME is not a valid name of a Kubernetes pod']],
  ])('%j are refused', (text, faults) => {
    expect(parseArgs(text).faults).toEqual(faults);
  });
});
