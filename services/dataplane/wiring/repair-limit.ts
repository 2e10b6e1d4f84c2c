import type { End, Repair } from './difference.js';
import { formatBucket, type Step } from './step.js';
import { isSameBucket, withBurst } from './token-bucket.js';

/** The steps that limit the packets leaving by a link as wanted. Another program's qdisc stays where none is wanted. */
export function repairLimit({ side, wanted: { link, bucket }, observed: { qdisc } }: End): Repair[] {
  const place = { side, device: link.name };
  const previous = qdisc?.bucket && withBurst(qdisc.bucket);
  const object = `${side} qdisc dev ${link.name} root`;
  const actual = previous ? formatBucket(previous) : (qdisc?.kind ?? 'missing');
  if (!bucket) {
    if (!previous) return [];
    const step: Step = { type: 'limit-delete', ...place, previous };
    return [{ step, differences: [{ object, wanted: 'absent', actual }] }];
  }
  if (qdisc?.bucket && isSameBucket(bucket, qdisc.bucket)) return [];
  // The kernel refuses to replace a qdisc of another kind that has the same handle.
  const foreign = qdisc && !previous;
  const removal: Step = { type: 'limit-delete', ...place, previous: undefined };
  const step: Step = { type: 'limit-set', ...place, bucket, previous };
  return [
    ...(foreign ? [{ step: removal, differences: [] }] : []),
    { step, differences: [{ object, wanted: formatBucket(bucket), actual }] },
  ];
}
