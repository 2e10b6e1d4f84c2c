/**
 * FNV-1a over the text's UTF-8 bytes (draft-eastlake-fnv), 32 bits. Names that differ in their last digit alone, as those of
 * nodes do, come out far apart; FNV-1, which Calico uses, would put them side by side.
 */
export function fnv1a32(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** FNV-1a over the text's UTF-8 bytes, 64 bits, as 16 hexadecimal digits. */
export function fnv1a64(text: string): string {
  let hash = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode(text)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  return hash.toString(16).padStart(16, '0');
}
