/**
 * A count with its noun: `1 block`, `2 blocks`, `0 addresses`.
 * @param plural - default: the singular with an `s`
 */
export function formatCount(value: number | bigint, singular: string, plural = `${singular}s`): string {
  return `${value} ${value === 1 || value === 1n ? singular : plural}`;
}
