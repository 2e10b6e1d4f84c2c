import { z } from 'zod';

import type { NamedObject } from './object-cache.js';

/** Fields of the API server's objects that podwire-ipam reads (Kubernetes API reference, core/v1). */

const conditionsSchema = z
  .array(z.object({ type: z.string(), status: z.string().default('Unknown') }))
  .nullish()
  .transform((conditions) => conditions ?? []);

const taintSchema = z.looseObject({ key: z.string() });

const nodeSchema = z.object({
  metadata: z.object({ name: z.string(), resourceVersion: z.string().default('') }),
  spec: z.object({ taints: z.array(taintSchema).nullish() }).nullish(),
  status: z.object({ conditions: conditionsSchema }).nullish(),
});

const podCidrsSchema = z.object({
  spec: z.object({ podCIDR: z.string().nullish(), podCIDRs: z.array(z.string()).nullish() }).nullish(),
});

const podSchema = z.object({
  metadata: z.object({ name: z.string(), deletionTimestamp: z.string().nullish() }),
  spec: z.object({ nodeName: z.string().default('') }).nullish(),
  status: z.object({ conditions: conditionsSchema }).nullish(),
});

const metadataSchema = z.object({ metadata: z.object({ name: z.string(), namespace: z.string().default('') }) });

const namespaceSchema = z.object({ metadata: z.object({ uid: z.string().min(1) }) });

type Taint = z.infer<typeof taintSchema>;

/** A Kubernetes Node. */
export interface ClusterNode extends NamedObject {
  readonly resourceVersion: string;
  /** Whether the kubelet reports it Ready. */
  readonly isReady: boolean;
  /** Status of the condition NetworkUnavailable; undefined while it has none. */
  readonly networkUnavailable: string | undefined;
  readonly taints: readonly Taint[];
}

/** A pod: of the DaemonSet podwire-node, or one whose address is recorded. */
export interface NodePod extends NamedObject {
  /** Empty until it is scheduled. */
  readonly nodeName: string;
  /** Whether all of its containers are ready, and it is not being deleted. */
  readonly isReady: boolean;
}

/** Name and namespace of an object. */
export interface ObjectName {
  readonly namespace: string;
  readonly name: string;
}

/** @returns undefined for anything but a Node */
export function readNode(object: unknown): ClusterNode | undefined {
  const { data } = nodeSchema.safeParse(object);
  if (!data) return undefined;
  const { metadata, spec, status } = data;
  const statusOf = (type: string): string | undefined =>
    status?.conditions.find((condition) => condition.type === type)?.status;
  return {
    name: metadata.name,
    resourceVersion: metadata.resourceVersion,
    isReady: statusOf('Ready') === 'True',
    networkUnavailable: statusOf('NetworkUnavailable'),
    taints: spec?.taints ?? [],
  };
}

/** Networks of a Node for its pods. @returns undefined for anything but a Node */
export function readPodCidrs(object: unknown): readonly string[] | undefined {
  const { data } = podCidrsSchema.safeParse(object);
  return data && (data.spec?.podCIDRs ?? [data.spec?.podCIDR ?? []].flat());
}

/** @returns undefined for anything but a Pod */
export function readNodePod(object: unknown): NodePod | undefined {
  const { data } = podSchema.safeParse(object);
  if (!data) return undefined;
  const { metadata, spec, status } = data;
  const isReady = status?.conditions.some(({ type, status: value }) => type === 'Ready' && value === 'True') ?? false;
  return {
    name: metadata.name,
    nodeName: spec?.nodeName ?? '',
    isReady: isReady && (metadata.deletionTimestamp ?? '') === '',
  };
}

/** @returns undefined for anything without metadata */
export function readName(object: unknown): ObjectName | undefined {
  return metadataSchema.safeParse(object).data?.metadata;
}

/** UID of a Namespace; undefined for anything else. */
export function readUid(object: unknown): string | undefined {
  return namespaceSchema.safeParse(object).data?.metadata.uid;
}
