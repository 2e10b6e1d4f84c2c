import {
  identifierFault,
  MAX_CONTAINER_ID_BYTES,
  podInterfaceNameFault,
  type Attachment,
} from '@podwire/shared/attachment/attachment';
import { violationsFailure } from '@podwire/shared/failure/failure';
import { z } from 'zod';

/**
 * The keys of GC's list. The second is the name that an earlier text of the specification had; libcni writes both
 * (containernetworking/cni#1101).
 */
const KEYS = ['cni.dev/valid-attachments', 'cni.dev/attachments'] as const;

const ATTACHMENT = z.object({
  containerID: z
    .string({ error: 'is missing' })
    .superRefine((id, context) => report(identifierFault(id, MAX_CONTAINER_ID_BYTES), context)),
  ifname: z
    .string({ error: 'is missing' })
    .superRefine((name, context) => report(podInterfaceNameFault(name), context)),
});

const LIST = z.array(ATTACHMENT, { error: 'is no list' }).nullable();

/**
 * Reads what GC has to leave. Absent is not empty: libcni leaves the key out where nobody told it what is valid, and other
 * runtimes' pods would go.
 * @param text - the network configuration, a JSON object
 * @returns undefined when no list is given; an empty one for `[]` and `null`
 * @throws Failure INVALID_CONFIG that lists every malformed attachment
 */
export function readValidAttachments(text: string, network: string): readonly Attachment[] | undefined {
  const keys = z.record(z.string(), z.unknown()).parse(JSON.parse(text));
  const key = KEYS.find((known) => Object.hasOwn(keys, known));
  if (key === undefined) return undefined;
  const parsed = LIST.safeParse(keys[key]);
  if (parsed.success) {
    return (parsed.data ?? []).map(({ containerID, ifname }) => ({
      network,
      containerId: containerID,
      interfaceName: ifname,
    }));
  }
  const violations = parsed.error.issues.map(({ path, message }) => ({
    field: [key, ...path].join('.'),
    reason: message,
  }));
  throw violationsFailure('INVALID_CONFIG', 'network configuration refused', violations);
}

function report(reason: string | undefined, context: z.RefinementCtx): void {
  if (reason !== undefined) context.addIssue({ code: 'custom', message: reason });
}
