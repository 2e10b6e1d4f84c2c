/** A number, and a unit or an exponent: `1.5M`, `10Mi`, `1e9`. Lengths are bounded, so that no number is huge. */
const QUANTITY = /^\+?(\d{1,20})?(?:\.(\d{0,20}))?(?:([numkMGTPE])|(Ki|Mi|Gi|Ti|Pi|Ei)|[eE]([+-]?\d{1,2}))?$/;

const DECIMAL_EXPONENTS: Readonly<Record<string, number>> = {
  n: -9,
  u: -6,
  m: -3,
  k: 3,
  M: 6,
  G: 9,
  T: 12,
  P: 15,
  E: 18,
};

const BINARY_UNITS = ['Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'];

/**
 * Reads a quantity of Kubernetes (resource.Quantity), rounded up to a whole number.
 * @returns undefined if it is not a quantity, or is negative
 */
export function parseQuantity(text: string): bigint | undefined {
  const [match, whole = '', fraction = '', decimalUnit, binaryUnit, exponent = '0'] = QUANTITY.exec(text) ?? [];
  if (match === undefined || whole + fraction === '') return undefined;
  const power =
    (decimalUnit === undefined ? Number(exponent) : (DECIMAL_EXPONENTS[decimalUnit] ?? 0)) - fraction.length;
  const binary = binaryUnit === undefined ? 1n : 1024n ** BigInt(BINARY_UNITS.indexOf(binaryUnit) + 1);
  const scaled = BigInt(whole + fraction) * binary;
  if (power >= 0) return scaled * 10n ** BigInt(power);
  const divisor = 10n ** BigInt(-power);
  return (scaled + divisor - 1n) / divisor;
}
