import { isObject } from './json.js';

/** The faults in the answer to VERSION (section 2, VERSION). */
export function versionAnswerFaults(value: unknown): readonly string[] {
  if (!isObject(value)) return ['standard output is not one JSON object'];
  const faults: string[] = [];
  if (typeof value.cniVersion !== 'string') faults.push('cniVersion is not a text');
  const listed = value.supportedVersions;
  if (!Array.isArray(listed) || listed.length === 0) faults.push('supportedVersions is no list, or empty');
  else if (!listed.every((entry) => typeof entry === 'string' && /^\d+\.\d+\.\d+$/.test(entry))) {
    faults.push('supportedVersions holds an invalid version');
  }
  return faults;
}

/** The versions that an answer to VERSION lists. */
export function listedVersions(value: unknown): readonly string[] {
  const listed = isObject(value) ? value.supportedVersions : undefined;
  return Array.isArray(listed) ? listed.filter((entry) => typeof entry === 'string') : [];
}
