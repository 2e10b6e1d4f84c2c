import { z } from 'zod';

import { labelsSchema, type Labels } from './label-selector.js';

/** Fields of Namespaces and Pods that network policies need (Kubernetes API reference, core/v1). */

/** IANA's numbers of the protocols that have ports. */
export const PROTOCOLS = { TCP: 6, UDP: 17, SCTP: 132 } as const;

export interface Namespace {
  readonly name: string;
  readonly labels: Labels;
}

/** A container's port with a name. */
export interface NamedPort {
  readonly name: string;
  readonly protocol: number;
  readonly port: number;
}

export interface PodName {
  readonly namespace: string;
  readonly name: string;
}

export function formatPodName({ namespace, name }: PodName): string {
  return `${namespace}/${name}`;
}

export interface Pod extends PodName {
  /** UID; of a static pod the hash of its file, which the kubelet uses instead. */
  readonly uid: string;
  /** Empty until it is scheduled. */
  readonly nodeName: string;
  /** Whether it has addresses of its own: not on the host's network, and not finished. */
  readonly isNetworked: boolean;
  readonly labels: Labels;
  /** The named ports of its containers and init containers. */
  readonly ports: readonly NamedPort[];
  /** Its addresses as the kubelet reports them, as texts. */
  readonly reportedAddresses: readonly string[];
}

const namespaceSchema = z.object({ metadata: z.object({ name: z.string().min(1), labels: labelsSchema }) });

const containersSchema = z
  .array(
    z.object({
      ports: z
        .array(
          z.object({
            name: z.string().nullish(),
            containerPort: z.number().int().min(1).max(65_535),
            protocol: z.enum(['TCP', 'UDP', 'SCTP']).default('TCP'),
          }),
        )
        .nullish(),
    }),
  )
  .nullish();

const podSchema = z.object({
  metadata: z.object({
    name: z.string().min(1),
    namespace: z.string().min(1),
    uid: z.string().default(''),
    labels: labelsSchema,
    annotations: z
      .object({
        'kubernetes.io/config.hash': z.string().optional(),
        // Only kubelets may make pods with it.
        'kubernetes.io/config.mirror': z.string().optional(),
      })
      .nullish(),
  }),
  spec: z.object({
    nodeName: z.string().default(''),
    hostNetwork: z.boolean().default(false),
    containers: containersSchema,
    initContainers: containersSchema,
  }),
  status: z
    .object({
      phase: z.string().default(''),
      podIP: z.string().default(''),
      podIPs: z.array(z.object({ ip: z.string() })).nullish(),
    })
    .default({ phase: '', podIP: '' }),
});

const FINISHED: readonly string[] = ['Succeeded', 'Failed'];

/** @returns undefined for anything but a Namespace */
export function readNamespace(object: unknown): Namespace | undefined {
  return namespaceSchema.safeParse(object).data?.metadata;
}

/** @returns undefined for anything but a Pod */
export function readPod(object: unknown): Pod | undefined {
  const { data } = podSchema.safeParse(object);
  if (!data) return undefined;
  const { metadata, spec, status } = data;
  const { 'kubernetes.io/config.hash': hash, 'kubernetes.io/config.mirror': mirror } = metadata.annotations ?? {};
  const containers = [...(spec.containers ?? []), ...(spec.initContainers ?? [])];
  return {
    namespace: metadata.namespace,
    name: metadata.name,
    uid: mirror === undefined || hash === undefined ? metadata.uid : hash,
    nodeName: spec.nodeName,
    isNetworked: !spec.hostNetwork && !FINISHED.includes(status.phase),
    labels: metadata.labels,
    ports: containers.flatMap(({ ports }) =>
      (ports ?? []).flatMap(({ name, protocol, containerPort: port }) =>
        typeof name === 'string' && name !== '' ? [{ name, protocol: PROTOCOLS[protocol], port }] : [],
      ),
    ),
    reportedAddresses: status.podIPs?.map(({ ip }) => ip) ?? [status.podIP].filter((address) => address !== ''),
  };
}
