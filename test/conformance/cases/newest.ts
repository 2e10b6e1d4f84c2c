import type { Bench } from '../bench.js';
import { isAtLeast, type Version } from '../specification/versions.js';

/** The newest version that the plugin lists. @throws NotApplicable where that is older than the case needs */
export function newest(bench: Bench, least: Version = '0.1.0'): Version {
  const found = bench.occasion.versions.at(-1);
  if (found === undefined) return bench.notApplicable('VERSION lists no version that this kit judges');
  if (!isAtLeast(found, least)) bench.notApplicable(`the newest version is ${found}, and this came with ${least}`);
  if (bench.occasion.subject.kind === 'meta' && !isAtLeast(found, '0.3.0'))
    bench.notApplicable('chains came with 0.3.0');
  return found;
}
