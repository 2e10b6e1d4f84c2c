import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type AttachedPod, type RateLimit } from '@podwire/proto/podwire/dataplane/v1/pod';
import { formatRateLimit } from '@podwire/shared/attachment/bandwidth';
import { formatHostPortKey, readHostPorts, type HostPort } from '@podwire/shared/attachment/host-port';
import { Failure } from '@podwire/shared/failure/failure';

import { formatAddress } from '@podwire/shared/net/address';
import { compareTexts } from '@podwire/shared/words/order';

import { allPages, type Service } from '../clients/services.js';
import type { Verb } from '../command-line/verb.js';
import { ON_NODE } from '../command-line/options.js';
import { attachmentText, failureLine } from '../output/words.js';
import { addressesText, listEndpoints, podText } from './workloadendpoint.js';

export const podsList: Verb = {
  name: 'pods list',
  about: 'the pods that are wired on this node, as its kernel reports them',
  details:
    'ADDRESSES shows the addresses that the node routes to the pod. The names of pods come from the node’s records.\n' +
    'A wire without a known pod shows its attachment: network/container/interface.\n' +
    '-o wide adds MTU, the limits of packets to and from the pod in bit/s (INGRESS, EGRESS), and ATTACHMENT.',
  options: [ON_NODE],
  run: async (_, { dataplane, ipam, json, output }) => {
    const pods = await listPods(dataplane);
    const { names, fault } = await podNames(pods, dataplane, ipam);
    const isWide = output === 'wide';
    const hasPorts = pods.some(({ hostPorts }) => hostPorts.length > 0);
    return {
      sections: [
        {
          kind: 'table',
          columns: [
            'POD',
            'HOST INTERFACE',
            'STATE',
            'ADDRESSES',
            ...(hasPorts ? ['HOST PORTS'] : []),
            ...(isWide ? [{ right: 'MTU' }, 'INGRESS', 'EGRESS', 'ATTACHMENT'] : []),
          ],
          rows: pods.map(({ attachment, hostInterface, addresses, up, hostPorts, bandwidth }) => [
            names.get(attachmentText(attachment)) ?? attachmentText(attachment),
            hostInterface?.name ?? '',
            up ? 'up' : 'down',
            addressesText(addresses),
            ...(hasPorts ? [known(hostPorts).map(formatHostPortKey).join(', ')] : []),
            ...(isWide
              ? [
                  String(hostInterface?.mtuBytes ?? ''),
                  ...[bandwidth?.ingress, bandwidth?.egress].map(limitText),
                  attachmentText(attachment),
                ]
              : []),
          ]),
          none: 'pods: none',
        },
      ],
      hints: [
        ...(pods.some(({ up }) => !up) ? ['a wire is down; to check it: podwirectl pods check'] : []),
        ...(fault === undefined ? [] : [`names of pods are unknown: ${fault}`]),
      ],
      data: () => json.of(PodServiceService.listPods, { pods, nextPageToken: '' }),
    };
  },
};

export const nodePorts: Verb = {
  name: 'node ports',
  about: 'the ports of this node that lead to pods (hostPort), with their pods',
  details: 'The address "any" means every address of the node.',
  options: [ON_NODE],
  run: async (_, { dataplane, ipam }) => {
    const pods = await listPods(dataplane);
    const { names, fault } = await podNames(pods, dataplane, ipam);
    const ports = pods
      .flatMap(({ attachment, hostPorts }) =>
        known(hostPorts).map((port) => ({ ...port, attachment: attachmentText(attachment) })),
      )
      .toSorted((a, b) => a.hostPort - b.hostPort || compareTexts(a.protocol, b.protocol));
    const rows = ports.map(({ hostAddress, protocol, hostPort, podPort, attachment }) => ({
      address: hostAddress ? formatAddress(hostAddress) : 'any',
      protocol,
      port: hostPort,
      podPort,
      pod: names.get(attachment) ?? '',
      attachment,
    }));
    return {
      sections: [
        {
          kind: 'table',
          columns: ['ADDRESS', 'PROTOCOL', { right: 'PORT' }, { right: 'POD PORT' }, 'POD', 'ATTACHMENT'],
          rows: rows.map((row) => Object.values(row).map(String)),
          none: 'host ports: none',
        },
      ],
      hints: fault === undefined ? [] : [`names of pods are unknown: ${fault}`],
      data: () => ({ ports: rows }),
    };
  },
};

function limitText(limit: RateLimit | undefined): string {
  if (!limit) return 'unlimited';
  const [rateBitsPerSecond, burstBits] = [Number(limit.rateBitsPerSecond), Number(limit.burstBits)];
  return formatRateLimit({ rateBitsPerSecond, burstBits: burstBits === 0 ? undefined : burstBits });
}

/** The host ports that this release can read. */
function known(hostPorts: AttachedPod['hostPorts']): readonly HostPort[] {
  return readHostPorts(hostPorts, () => undefined);
}

export async function listPods(dataplane: Service): Promise<AttachedPod[]> {
  const pages = await allPages((page) => dataplane.call(PodServiceService.listPods, page));
  return pages.flatMap(({ pods }) => pods);
}

interface PodNames {
  /** `default/web-0` by attachment. */
  readonly names: ReadonlyMap<string, string>;
  /** Why they are unknown. */
  readonly fault?: string;
}

/** Names of the node's records. podwire-ipam has the names of pods that an earlier release wired. */
async function podNames(pods: readonly AttachedPod[], dataplane: Service, ipam: Service): Promise<PodNames> {
  const known = pods.filter(({ podName }) => podName !== '');
  const names = new Map(known.map((pod) => [attachmentText(pod.attachment), `${pod.podNamespace}/${pod.podName}`]));
  if (names.size === pods.length) return { names };
  const { nodeName } = await dataplane.call(NodeServiceService.getNodeStatus, {});
  try {
    const endpoints = await listEndpoints(ipam, { node: nodeName });
    const reported = endpoints.map((each) => [attachmentText(each.attachment), podText(each)] as const);
    return { names: new Map([...reported, ...names]) };
  } catch (error) {
    if (error instanceof Failure) return { names, fault: failureLine(error) };
    throw error;
  }
}
