import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, test } from 'vitest';

import { readAttachConfig } from './config.js';
import { parseArgs } from './environment.js';
import { resolvePodRequest, type PodRequest } from './pod-request.js';

type Keys = Readonly<Record<string, unknown>>;

const NOTHING: PodRequest = {
  families: [],
  pools: [],
  addresses: [],
  addressesWithoutIpam: [],
  macAddress: undefined,
  sourcePrefixes: [],
  hostPorts: [],
  bandwidth: undefined,
  chosenFamilies: [],
  poolChoices: [],
};

const pool = (name: string, family: 4 | 6 = 4) => ({ pool: name, family, isConfigured: false });
const configured = (name: string, family: 4 | 6 = 4) => ({ pool: name, family, isConfigured: true });

function podRequest(keys: Keys, args = ''): PodRequest {
  const config = readAttachConfig(
    'ADD',
    JSON.stringify({ cniVersion: '1.0.0', name: 'net', type: 'podwire', ...keys }),
  );
  return resolvePodRequest(config.requestSources, parseArgs(args).argsRequest);
}

const prefixed = (annotations: Readonly<Record<string, unknown>>) =>
  Object.fromEntries(
    Object.entries(annotations).map(([name, value]) => [
      `cni.projectcalico.org/${name}`,
      typeof value === 'string' ? value : JSON.stringify(value),
    ]),
  );

const annotated = (annotations: Readonly<Record<string, unknown>>, keys: Keys = {}): Keys => ({
  ...keys,
  runtimeConfig: { 'io.kubernetes.cri.pod-annotations': prefixed(annotations) },
});

const ALLOWED = { feature_control: { ip_addrs_no_ipam: true, allowed_source_prefixes: true } };
const MAC = '02:00:00:00:00:07';

type Case = readonly [string, Keys, string, Partial<PodRequest>];

describe('a pod gets', () => {
  const cases: readonly Case[] = [
    ['the choice of IPAM, without a request', {}, '', {}],
    [
      'the same where every source is empty',
      { ipam: { ipv4_pools: [] }, runtimeConfig: { ips: [], mac: '' }, args: { cni: { ips: null } } },
      'IP=;MAC=',
      {},
    ],
    ['IPv4 where only IPv6 is turned off', { ipam: { assign_ipv6: 'false' } }, '', { families: [4] }],
    ['both families', { ipam: { assign_ipv4: 'true', assign_ipv6: 'true' } }, '', { families: [4, 6] }],
    ['IPv6 alone', { ipam: { assign_ipv4: 'false', assign_ipv6: true } }, '', { families: [6] }],
    [
      'the configuration’s pools of IPv4',
      { ipam: { ipv4_pools: ['a', '10.0.0.0/16'], ipv6_pools: ['fd00::/48'] } },
      '',
      { pools: ['a', '10.0.0.0/16'], poolChoices: [configured('a'), configured('10.0.0.0/16')] },
    ],
    [
      'the configuration’s pools of both',
      { ipam: { assign_ipv6: 'true', ipv4_pools: ['a'], ipv6_pools: ['fd00::/48'] } },
      '',
      {
        families: [4, 6],
        pools: ['a', 'fd00::/48'],
        poolChoices: [configured('a'), configured('fd00::/48', 6)],
      },
    ],
    [
      'its annotation’s pools before the configuration’s',
      annotated({ ipv4pools: ['b'] }, { ipam: { ipv4_pools: ['a'] } }),
      '',
      { pools: ['b'], poolChoices: [pool('b')] },
    ],
    [
      'its annotation’s families before the configuration’s',
      annotated({ ipFamilies: ['IPv6', 'IPv4'], ipv6pools: ['b'] }, { ipam: { assign_ipv6: 'false' } }),
      '',
      { families: [4, 6], chosenFamilies: [4, 6], pools: ['b'], poolChoices: [pool('b', 6)] },
    ],
    [
      'one pool name in both families, so that IPAM can name the missing family',
      annotated({ ipFamilies: ['IPv4', 'IPv6'], ipv4pools: ['b'], ipv6pools: ['b'] }),
      '',
      { families: [4, 6], chosenFamilies: [4, 6], pools: ['b'], poolChoices: [pool('b'), pool('b', 6)] },
    ],
    [
      'the addresses of its annotation, and then no pools',
      annotated({ ipAddrs: ['10.65.0.7', 'FD65:0::7'], ipv4pools: ['b'] }),
      '',
      { addresses: ['10.65.0.7', 'fd65::7'] },
    ],
    [
      'addresses without IPAM, where that is allowed',
      annotated({ ipAddrsNoIpam: ['10.65.0.7'] }, ALLOWED),
      '',
      { addressesWithoutIpam: ['10.65.0.7'] },
    ],
    [
      'addresses of the runtime’s capability',
      { runtimeConfig: { ips: ['10.65.0.7/24'] } },
      '',
      { addresses: ['10.65.0.7'] },
    ],
    [
      'addresses of a capability in capitals',
      { runtimeConfig: { IPs: ['10.65.0.7'], MAC: MAC.toUpperCase() } },
      '',
      { addresses: ['10.65.0.7'], macAddress: MAC },
    ],
    [
      'host ports of the runtime’s capability',
      {
        runtimeConfig: {
          portMappings: [
            { hostPort: 8080, containerPort: 80, protocol: 'tcp', hostIP: '' },
            { hostPort: 53, containerPort: 5353, protocol: 'UDP', hostIP: '192.0.2.1', later: 1 },
          ],
        },
      },
      '',
      {
        hostPorts: [
          { protocol: 'tcp', hostPort: 8080, podPort: 80, hostAddress: undefined },
          { protocol: 'udp', hostPort: 53, podPort: 5353, hostAddress: { family: 4, value: 0xc0_00_02_01n } },
        ],
      },
    ],
    [
      'host ports as containerd spells them',
      { runtimeConfig: { portMappings: [{ HostPort: 8080, ContainerPort: 80, Protocol: 'tcp', HostIP: '' }] } },
      '',
      { hostPorts: [{ protocol: 'tcp', hostPort: 8080, podPort: 80, hostAddress: undefined }] },
    ],
    [
      'limits of the runtime and of annotations',
      {
        runtimeConfig: {
          Bandwidth: { IngressRate: 1000, EgressRate: 2000 },
          'io.kubernetes.cri.pod-annotations': { 'qos.projectcalico.org/egressBandwidth': '3k' },
        },
      },
      '',
      {
        bandwidth: {
          ingress: { rateBitsPerSecond: 1000, burstBits: undefined },
          egress: { rateBitsPerSecond: 3000, burstBits: undefined },
        },
      },
    ],
    ['no host ports where the runtime passes none', { runtimeConfig: { portMappings: null } }, '', {}],
    [
      'addresses of args.cni before addresses of CNI_ARGS',
      { args: { cni: { ips: ['10.65.0.7'], mac: MAC } } },
      'IP=10.65.0.8;MAC=02:00:00:00:00:08',
      { addresses: ['10.65.0.7'], macAddress: MAC },
    ],
    [
      'addresses of CNI_ARGS',
      {},
      `IP=fd65::7,10.65.0.7;MAC=${MAC}`,
      { addresses: ['fd65::7', '10.65.0.7'], macAddress: MAC },
    ],
    [
      'addresses that two sources have in common',
      annotated({ ipAddrs: ['10.65.0.7', 'fd65::7'], hwAddr: MAC }),
      `IP=FD65::7,10.65.0.7;MAC=${MAC}`,
      { addresses: ['10.65.0.7', 'fd65::7'], macAddress: MAC },
    ],
    ['the MAC address of its annotation', annotated({ hwAddr: MAC }), '', { macAddress: MAC }],
    [
      'source prefixes, where that is allowed',
      annotated({ allowedSourcePrefixes: ['8.8.8.0/24', 'FD00::/8'] }, ALLOWED),
      '',
      {
        sourcePrefixes: [
          { family: 4, value: 0x08_08_08_00n, length: 24 },
          { family: 6, value: 0xfdn << 120n, length: 8 },
        ],
      },
    ],
    ['nothing from empty annotations', annotated({ floatingIPs: '[]', ipAddrsNoIpam: '[ ]'.replace(' ', '') }), '', {}],
    [
      'nothing from annotations of other projects',
      {
        runtimeConfig: {
          'io.kubernetes.cri.pod-annotations': { ipAddrs: 'x' },
          bandwidth: {},
          dns: {},
        },
      },
      '',
      {},
    ],
  ];

  test.each(cases)('%s', (_, keys, args, expected) => {
    expect(podRequest(keys, args)).toEqual({ ...NOTHING, ...expected });
  });
});

describe('a request is refused, with its source, for', () => {
  const PLACE = 'annotation cni.projectcalico.org/';
  const cases: readonly (readonly [string, Keys, string, string])[] = [
    ['no family', { ipam: { assign_ipv4: 'false' } }, '', 'ipam.assign_ipv4 is "false" and ipam.assign_ipv6 is not'],
    ['a flag that is no boolean', { ipam: { assign_ipv4: 'yes' } }, '', 'ipam.assign_ipv4 must be "true" or "false"'],
    [
      'a pool of the other family',
      { ipam: { ipv4_pools: ['fd00::/48'] } },
      '',
      'ipam.ipv4_pools has fd00::/48, which is an IPv6 pool',
    ],
    ['a pool without a name', { ipam: { ipv6_pools: [''] } }, '', 'ipam.ipv6_pools has an empty entry'],
    ['pools that are not a list', { ipam: { ipv4_pools: 'a' } }, '', 'ipam.ipv4_pools must be a list'],
    [
      'an annotation that is not JSON',
      annotated({ ipv4pools: 'a' }),
      '',
      `${PLACE}ipv4pools must be a JSON list of strings`,
    ],
    ['an annotation with numbers', annotated({ ipAddrs: [7] }), '', `${PLACE}ipAddrs must be a JSON list of strings`],
    [
      'an annotated pool of the other family',
      annotated({ ipv6pools: ['10.0.0.0/8'] }),
      '',
      `${PLACE}ipv6pools has 10.0.0.0/8, which is an IPv4 pool`,
    ],
    [
      'an unknown family',
      annotated({ ipFamilies: ['ipv4'] }),
      '',
      `${PLACE}ipFamilies has "ipv4", which is not IPv4 or IPv6`,
    ],
    [
      'a family that is a property of every object',
      annotated({ ipFamilies: ['constructor'] }),
      '',
      `${PLACE}ipFamilies has "constructor"`,
    ],
    [
      'no address',
      annotated({ ipAddrs: ['10.65.0'] }),
      '',
      `${PLACE}ipAddrs has "10.65.0", which is not an IP address`,
    ],
    [
      'two addresses of a family',
      annotated({ ipAddrs: ['10.65.0.1', '10.65.0.2'] }),
      '',
      `${PLACE}ipAddrs has two IPv4 addresses`,
    ],
    [
      'both kinds of addresses',
      annotated({ ipAddrs: ['10.65.0.1'], ipAddrsNoIpam: ['10.65.0.1'] }, ALLOWED),
      '',
      `${PLACE}ipAddrs cannot be combined with ${PLACE}ipAddrsNoIpam`,
    ],
    [
      'addresses without IPAM that are not allowed',
      annotated({ ipAddrsNoIpam: ['10.65.0.1'] }),
      '',
      `${PLACE}ipAddrsNoIpam needs feature_control.ip_addrs_no_ipam`,
    ],
    [
      'source prefixes that are not allowed',
      annotated({ allowedSourcePrefixes: ['8.8.8.0/24'] }),
      '',
      `${PLACE}allowedSourcePrefixes needs feature_control.allowed_source_prefixes`,
    ],
    [
      'a source prefix with host bits',
      annotated({ allowedSourcePrefixes: ['8.8.8.8/24'] }, ALLOWED),
      '',
      `${PLACE}allowedSourcePrefixes has "8.8.8.8/24", which has host bits set`,
    ],
    [
      'floating IPs, even if the configuration allows them as for Calico',
      annotated({ floatingIPs: ['1.2.3.4', 'fd00::1'] }, { feature_control: { floating_ips: true } }),
      '',
      `${PLACE}floatingIPs requests floating IPs (1.2.3.4, fd00::1), which Podwire does not support, as podwire-node has no NAT for them; remove it and publish a port of the pod by portMappings or a Service`,
    ],
    [
      'a multicast MAC address',
      annotated({ hwAddr: '01:00:5e:00:00:01' }),
      '',
      `${PLACE}hwAddr is "01:00:5e:00:00:01", which is not a unicast MAC`,
    ],
    [
      'an address of a family that is turned off',
      annotated({ ipAddrs: ['fd65::7'], ipFamilies: ['IPv4'] }),
      '',
      `${PLACE}ipAddrs requests fd65::7, but ${PLACE}ipFamilies excludes its family`,
    ],
    [
      'addresses that differ between sources',
      { runtimeConfig: { ips: ['10.65.0.7'] } },
      'IP=10.65.0.8',
      'runtimeConfig.ips requests 10.65.0.7, but CNI_ARGS IP requests 10.65.0.8',
    ],
    [
      'addresses that differ from the annotation’s',
      annotated({ ipAddrs: ['10.65.0.7'] }, { args: { cni: { ips: ['10.65.0.9'] } } }),
      '',
      `${PLACE}ipAddrs requests 10.65.0.7, but args.cni.ips requests 10.65.0.9`,
    ],
    [
      'MAC addresses that differ between sources',
      { runtimeConfig: { mac: MAC } },
      'MAC=02:00:00:00:00:08',
      `runtimeConfig.mac requests ${MAC}, but CNI_ARGS MAC requests`,
    ],
    [
      'a key in two spellings with different values',
      { runtimeConfig: { ips: ['10.65.0.7'], IPs: ['10.65.0.8'] } },
      '',
      'runtimeConfig.ips requests 10.65.0.7, but runtimeConfig.IPs',
    ],
    [
      'a capability that is not a list',
      { runtimeConfig: { ips: '10.65.0.7' } },
      '',
      'runtimeConfig.ips must be a list of strings',
    ],
    [
      'host ports that are not numbers',
      { runtimeConfig: { portMappings: [{ hostPort: '80', containerPort: 80 }] } },
      '',
      'runtimeConfig.portMappings[0].hostPort must be a number',
    ],
    [
      'host ports with several faults',
      {
        runtimeConfig: {
          portMappings: [
            { hostPort: 0, containerPort: 80, hostIP: 'x' },
            { hostPort: 80, containerPort: 80, protocol: 'icmp' },
          ],
        },
      },
      '',
      'runtimeConfig.portMappings[0].hostPort is 0; a port is 1 to 65535; runtimeConfig.portMappings[0].hostIP is "x"; must be an IP address; runtimeConfig.portMappings[1].protocol is "icmp"',
    ],
    [
      'a host port under two spellings of the capability',
      {
        runtimeConfig: {
          portMappings: [{ hostPort: 80, containerPort: 80 }],
          PortMappings: [{ hostPort: 80, containerPort: 81 }],
        },
      },
      '',
      'runtimeConfig.PortMappings repeats tcp/80 of runtimeConfig.portMappings',
    ],
    ['a MAC address that is not a string', { runtimeConfig: { mac: 7 } }, '', 'runtimeConfig.mac must be a string'],
    [
      'annotations that are not an object',
      { runtimeConfig: { 'io.kubernetes.cri.pod-annotations': [] } },
      '',
      'pod-annotations must be an object',
    ],
  ];

  test.each(cases)('%s', (_, keys, args, message) => {
    const refused = () => podRequest(keys, args);
    expect(refused).toThrow(Failure);
    expect(refused).toThrow(
      expect.objectContaining({ code: 'INVALID_CONFIG', message: expect.stringContaining(message) }),
    );
  });

  test('all errors at once, contradictions included', () => {
    const keys = annotated({ ipAddrs: ['x'], hwAddr: 'y', ipFamilies: ['z'] }, { mtu: -1, ipam: { assign_ipv4: 'w' } });
    expect(() => podRequest(keys)).toThrow(/mtu must.*assign_ipv4 must|assign_ipv4 must.*mtu must/);
    const both = annotated({ ipAddrs: ['x'], hwAddr: 'y', ipFamilies: ['z'] });
    expect(() => podRequest(both)).toThrow(/ipFamilies has "z".*ipAddrs has "x".*hwAddr is "y"/);
    const apart = { runtimeConfig: { ips: ['10.65.0.7'], mac: MAC } };
    expect(() => podRequest(apart, 'IP=10.65.0.8;MAC=02:00:00:00:00:08')).toThrow(/ips requests.*mac requests/);
  });
});
