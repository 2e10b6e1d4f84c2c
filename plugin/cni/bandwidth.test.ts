import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { readBandwidth } from './bandwidth.js';
import { parseQuantity } from './quantity.js';

const INGRESS_RATE = 'qos.projectcalico.org/ingressBandwidth';
const INGRESS_BURST = 'qos.projectcalico.org/ingressBurst';
const EGRESS_RATE = 'qos.projectcalico.org/egressBandwidth';

const read = (value: unknown, annotations: Readonly<Record<string, string>> = {}) => {
  const faults: string[] = [];
  const bandwidth = readBandwidth({ source: 'runtimeConfig.bandwidth', value }, annotations, ({ field, reason }) =>
    faults.push(`${field} ${reason}`),
  );
  return { bandwidth, faults };
};

const limit = (rateBitsPerSecond: number, burstBits?: number) => ({ rateBitsPerSecond, burstBits });
const both = { ingressRate: 10_000_000, ingressBurst: 1_000_000, egressRate: 5_000_000, egressBurst: 2_000_000 };

describe('a pod gets', () => {
  test.each([
    ['the limits of the runtime', both, {}, { ingress: limit(10_000_000, 1_000_000), egress: limit(5e6, 2e6) }],
    [
      'limits as containerd spells them, without its burst',
      { IngressRate: 10_000_000, IngressBurst: 4_294_967_295, EgressRate: 0, EgressBurst: 0 },
      {},
      { ingress: limit(10_000_000) },
    ],
    [
      'limits without the burst of CRI-O',
      { egressRate: 1000, egressBurst: 34_359_738_360 },
      {},
      { egress: limit(1000) },
    ],
    ['limits without a burst', { egressRate: 1000, later: 'x', ingressRate: null }, {}, { egress: limit(1000) }],
    [
      'a limit of an annotation, which replaces the runtime’s with its burst',
      both,
      { [INGRESS_RATE]: '20M' },
      { ingress: limit(20_000_000), egress: limit(5e6, 2e6) },
    ],
    [
      'a burst of an annotation for the rate of the runtime',
      both,
      { [INGRESS_BURST]: '34359738360' },
      { ingress: limit(10_000_000, 34_359_738_360), egress: limit(5e6, 2e6) },
    ],
    ['limits of annotations alone', null, { [EGRESS_RATE]: '10Mi' }, { egress: limit(10_485_760) }],
    ['no limits without a request', {}, { 'cni.projectcalico.org/podIP': '10.65.0.7/32' }, undefined],
  ])('%s', (_, value, annotations, bandwidth) => {
    expect(read(value, annotations)).toEqual({ bandwidth, faults: [] });
  });
});

describe('a request is refused for', () => {
  test.each([
    ['a list', [both], {}, ['runtimeConfig.bandwidth must be an object']],
    ['a text', { ingressRate: '10M' }, {}, ['runtimeConfig.bandwidth.ingressRate must be a number']],
    [
      'a burst without a rate',
      { egressBurst: 1_000_000 },
      {},
      [
        'runtimeConfig.bandwidth.egressBurst needs a rate; set annotation qos.projectcalico.org/egressBandwidth or kubernetes.io/egress-bandwidth',
      ],
    ],
    [
      'values out of range, each with its source',
      { IngressRate: 999, EgressRate: 1e16 },
      { [INGRESS_BURST]: '1' },
      [
        'runtimeConfig.bandwidth.IngressRate is 999 bit/s; it must be a whole number from 1000 to 1000000000000000 bit/s',
        `annotation ${INGRESS_BURST} is 1 bit; it must be a whole number from 1000 to 34359738360 bit`,
        'runtimeConfig.bandwidth.EgressRate is 10000000000000000 bit/s; it must be a whole number from 1000 to 1000000000000000 bit/s',
      ],
    ],
    [
      'annotations that are not quantities',
      {},
      { [INGRESS_RATE]: '10 MBit', [EGRESS_RATE]: '-1' },
      [
        `annotation ${INGRESS_RATE} is "10 MBit", which is not a quantity; use a number such as 10M`,
        `annotation ${EGRESS_RATE} is "-1", which is not a quantity; use a number such as 10M`,
      ],
    ],
    [
      'what Calico limits besides',
      {},
      { 'qos.projectcalico.org/ingressPacketRate': '1k', 'qos.projectcalico.org/dscp': 'AF11' },
      ['ingressPacketRate', 'dscp'].map(
        (name) =>
          `annotation qos.projectcalico.org/${name} is not supported by Podwire; remove it, or limit the pod with ingressBandwidth, ingressBurst, egressBandwidth, egressBurst`,
      ),
    ],
  ])('%s', (_, value, annotations, faults) => {
    expect(read(value, annotations).faults).toEqual(faults);
  });
});

describe('a quantity', () => {
  test.each([
    ['0', 0n],
    ['1.5M', 1_500_000n],
    ['1.1M', 1_100_000n],
    ['+10Mi', 10_485_760n],
    ['.5Ki', 512n],
    ['1.', 1n],
    ['1e3', 1000n],
    ['1E', 10n ** 18n],
    ['1E-1', 1n],
    ['100m', 1n],
    ['1000001u', 2n],
    ['1n', 1n],
    ['34359738360', 34_359_738_360n],
  ])('%s is %s', (text, value) => {
    expect(parseQuantity(text)).toBe(value);
  });

  test.each(['', '.', 'M', '-1', '1 M', '1MB', '1mi', '1e', '1e100', '0x10', '1'.repeat(21), '∞'])(
    '%s is none',
    (text) => {
      expect(parseQuantity(text)).toBeUndefined();
    },
  );

  test('of any text is a number or none', () => {
    fc.assert(fc.property(fc.string(), (text) => (parseQuantity(text) ?? 0n) >= 0n));
  });
});
