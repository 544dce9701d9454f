"""The codebooks of the IQ types: which points of a small lattice may stand for a group of weights.

A codebook is a subset of all points whose coordinates are drawn from a few levels, in ascending
order with the first coordinate as the least significant digit. So it is kept as one bit a point
(base 85): bit p says whether point p is in it. Source: the tables of ggml/src/ggml-common.h (MIT).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cache

import numpy as np

from slipway.load.gguf.blocks import Floats


@dataclass(frozen=True, slots=True)
class Codebook:
    """Points of `width` coordinates, each one of `levels`."""

    width: int
    levels: tuple[int, ...]
    members: str


@cache
def points(name: str) -> Floats:
    """The codebook of a type as [points, width] fp32, indexed as ggml indexes it."""
    book = CODEBOOKS[name]
    base = len(book.levels)
    member = np.unpackbits(np.frombuffer(base64.b85decode(book.members), np.uint8), count=base**book.width)
    places = base ** np.arange(book.width)
    digits = np.flatnonzero(member)[:, None] // places % base
    levels: Floats = np.array(book.levels, dtype=np.float32)
    coordinates: Floats = levels[digits]
    return coordinates


CODEBOOKS = {
    "IQ2_XXS": Codebook(
        8,
        (8, 25, 43),
        "s;DTc2qJ=l03awL00;m803ZSYC;$Qg0000W000UI0)mJDfG8jW3LpXi2mk<}2mk;I004jh00IC2f+!#YC@25`A"
        "OHX$001BW0000003Zke000000000eAP5Km0stV003d(}00II4fB*mh004j>0000000<xgAOZjYAOHXW00;m800"
        ";m800ICA0000000000pnw1%00062004*p000000001h000000ssI2001Z;004jhfS>>X000082mk;8000UA000"
        "00000000)hYlfC2yj00062001BW0ssI200000000000ssI403ZMW0000W0000000000000000001h00000015~"
        "qf(QtJC?Eg`00IC203ad&00II400II4fB*mj2mpWp000O82mk;e2mk;800000fB*mh00000001Z;00@8p00000"
        "AOHXW00@8}00000001BW001BW2qFpq0000WfB*o1001BW00000fB*mh000000ssI2000000007j004jh000000"
        "000W00000fB*mh03Zk;0000W000000006200000001BW0000000000f&c)3004jh00IC2000620000000IC200"
        ";m8004*p000000000004M+e0000W00000000000000000000fB*mh00000000000000000000000000007l001"
        "BW00IC203ZSYAOHXW00000AOHXW0000004O2=2mk^A0000W0000W00008001BW0ssJj000020000000000004j"
        "h00000000000Du4h00000001C>2p|9e0001h00IC20006200000004jh00000AOHdYfB*mh000000001h00000"
        "0000000000000000000000;m80001h0000000000000000000003ZMW00;m8AOHXWfB*mh0000003ZMW000000"
        "000003ZMW00000000000000000000000000000000000001BW00000AOHXW0000000000000000000000",
    ),
    "IQ2_XS": Codebook(
        8,
        (8, 25, 43),
        "s;a7rs-l9ZqJS!@stTfl2%vxfDvAgKf*=5ZfB*`rqJpTXfG8jU3ZjAlpnxDC0007l00^J}00IC20;-^hC?J3c0"
        "0IJ_fB+x>00IaA0Du4>fB*mh00@98s)`Dtf&!p`04j<I0)hYlfC>N#hyVfr0Du4h01Bdl0HS~hAOHXYf&c)300"
        "00000ICY004jh00000pr8OC0ssIY004*p00000AOHXW000000ssI2006402m*ot0Du4>3J3rK2mlBG000O80Du"
        "4h03ZMWB7y({fB*mh00062001Be000080Du6100000000PrfFJ+>fB*;pAOHXW000080Du4hfCvBp001I@01B$"
        "2f~ug1C?Eg|qJjXRfB+%@0s?}70)PMj00002sG@)<AOHvefB>L?2p|9e00062fPer32mk;8001Z;00@A9fB*mh"
        "AP4{ef&c;l0006200000000003ZjAtpnw1%0007lAON5M000000ssI22mk;80007@fFK|M2m$~AfPw%3000022"
        "mk;800;m800;m8ARqz&0s;U4004jh00;tr0000000000000000ssI4f&c)32nYax015yA0000000000000O8AO"
        "HXWfB=93000000000003ZMefB*mh00;m800000000002mk;80001h0000003ZMW0000003ZMW00;;G00080pn#"
        "|#015yA3aEepAP67;0001h03ZMW00Mvjf+#8g2mk^A0ssIY0001h000000ssIY00000fB*mpAOIi$0Dvd}03aX"
        "$0000000000001BW000OeAPAs<03ZN>0Du4hfB*;p004jh000000000W00IC2A^-pYf(QTr0000000;m8001Ze"
        "00000fB*mh000000000W00000AOHXW0Du4h000002mk;82mk;80HS~(AOHXW004jh000022mk;80w{n02mk;8f"
        "B+x>00062000020000000000000000000000IC2AOHdYq5uE@0006AAOHXW0001>000000H6Q>004jhfB",
    ),
    "IQ2_S": Codebook(
        8,
        (8, 25, 43),
        "s;a7rs-mi>poprfiVC8tD4?h)DvAgSsvrP}hzJU*qN=K@s4Ak03aY9os;Vd|iU<O#AOMOeAPNWo0;sBps;Y_zf"
        "Pey^svshY2m%5C0Dve6pa=i}00ICis)~xDs;H=nC@QL|qN=E%swe;oD1w3@pa3W!01Be2D5|O`DvAgKs;Ho<C?"
        "E<500JnWfG8jU2mk;As)`^giU<OL0062eAPNWo2mk;e2p|9m03ZMW001hAsEUH1Ab^MfDhh%EprC*#AOHvm0E!"
        "@h005u>BC05$swf}|2mk^opnxbK0Ehqp0HA;XAOIi$0001pC;$ow000620H`1U0000000;m8AOZjY03ZT@01B$"
        "AqN=K>C?bjqqN<>(swgUo2m*qrAc`m;3IG5Cs;a6gs)`Dtf&i+jC@P8w3W5Ltswf}|2mk^A00=0miVC8F03d(>"
        "DvAgKf&c)30ssmK00IC2000003Zkm0s;Vd|iU0ztsGzDSAPNWo0w|z>C?EhR00020swgUo2m*ot0IDb;3J3rK0"
        "000eAOMH}0000004j<I0)henfB*mr2mk^A0000000;mG000000ssIaqNt#XC?Em|00O9>fG8jU2mlBGAb<cM0D"
        "u4h0Dy`pAPNWo0ssI2C?Eg`2mlBGAOIi$00000000O83J3rI000O80DuSp00IC20000000000AOHXW00IK2qKG"
        "IehzNp!0HUfWDvAICf&c=Dr~nEG0000004l183ZjAlpnw1>iU<ON004l1015~I3IG5A00008f`9;^fB*mh0s?>"
        "l0Du4j00000001BW0H6W@0Dz*Z2r7yQ0)hYlh$sLG2nYZG001Z;00;m800002DvAgKf&c)30ssmK00IC20001p"
        "2mk;82mlBG0007l00@8p000003IG5A0Ehqp0000000000000620EmbPDhL1o001C>000O803ZMW00<xgC;$KeB"
        "7gvj2mk^A0001h0tf&I000000000000000AOHXW000620ssI20001h000000ssIY0007jD1ZO}00;m8fB",
    ),
    "IQ3_XXS": Codebook(
        4,
        (4, 12, 20, 28, 36, 44, 52, 62),
        "s8OImAOHXqP@qJhKnMVUs6e1m06_o*L7)Tx0001h01yBH2mt^TK>z?C03ZMW00004000O80Ez$r5CA{`P@qt#0"
        "e}Dipg^Di00000P@q770000Wpa6hC0ssO4L;wH)0Du4h004*p0ssI&1ONa400000001BWfB*mhpirVfAOHXWRG"
        ">hB000qyph2JkfCK;lK!^YU0001p0000401yBG5C8!HKmY&;0000000000Pyzq|1ONa4K%h_n0DuG_pa6hC3IG"
        "5AP=Evg03ZM$06+i`000000001h0RR9Xf&d@@00aO400;mA000mG0000G004jh2mt^E01*HH0000000008004j"
        "ifB=F30RR911ONa42mk;806+);000C45C8yx00000000001fT$b0000003ZMWKmY)Mf&c;l00aO400;me0000W"
        "AOHXW01yBG0Duty0000WAOHYB00000000000Du4h000O8AOHXW000O83IGTI002M$002M$00961000O80001j0"
        "0000000002mk;81ONa403ZMW0000G000005CA{`000006@UOB03ZMW00062fB*mh03ZMW1RwwafCK;#004jh00"
        "2M$KmY&$pa2K}000000001h000000000000000",
    ),
    "IQ3_S": Codebook(
        4,
        (1, 3, 5, 7, 9, 11, 13, 15),
        "<?6%`rBI+r=){pk2mnMN#gasbB~Sp65JaF-2%rH(fDuR_kU#){C;*}mMF0X20#E=z03ZNBr~sl60Ehqp=+&S~0"
        "17}L(uhEiK%fAEfF+0^kOY7rNsvK^KmZ_s6es{tB8UJ0K#)M706+i$004;q3IG5AP@q5rKmZ_s)v8gTRG<Nrpp"
        "hg<AV2^BNdQoRKoI~)q(CT8Ab<h@K>&~>KmY(F2tXhKfDizHp#VSt00ck)1V93S5P$#xAXOk#DL@cFR0vQ2fB="
        "9ZfFOV<0Du4hK!{O*Q3L=G5JDh803e6}K%fL52m$~Q00IC2KmY&$PynC=00000h#-j|K!5;%Ay6QM5JUg~P=r7"
        "bfB_(Y2vDFz00000pa2K~fB*nM1pq(*001BW01yBO004jh0E7U55I_I`Ac!CUi68<9R3Jbg0000WfItv}01yBG"
        "A%Fn@2tWi7NC1E!0ssI203ZSY08jt`00000AOHXWC;%V;0000008{`_004jhfB=C2000O803ZMeAOs+QfCxYUf"
        "B*mh000C45C9+mkN^M(004jh1ONa4fB*mh08jt`00000i2$GifCwM}AV3HJ6aWAKNP<9s06+i$AOHX)01yBGL="
        "b=g0Du4h001BWAOHXWAOHYB00000fB*mh00000",
    ),
    "IQ1_S": Codebook(
        8,
        (-1, 0, 1),
        "s-!5P1wcZI5Tc9~VFXb{SP)bMD4_}{K?EYAq^O_;KtTi%7yuAK1;A7V5#3c#302SlL;z4#F+l|o0*Vl#gb@J>C"
        "_;)5Q4A0n1rPyL5Tb-Ap#%~_st}@pG(!ahQDgvABo$Rf5J&Y85EK*u1wcX+RTKmj0R&Ll5S?8W1XFd9MRiqNKG"
        "#=W-9d02L|s$Ma7jQ!07L{8QC(0$Ko9^_QU^ucL<H1D0D%I5RZ$cWM1Uxv3aCK@kfMYtp#=~?#1&iwAwdKxLW&"
        "SY1Q4kTC_q#Y9Th<V1rk665J5#2ML-nQR1l#A5J3zOq5=S-geai}078lYqJWe^08v3y5QPjVpb98K6cD0>D4_&"
        "EKm=7(00c;lQFRm*U4>N@4gf(=5I__}Kp_A@01^QOR}EBELj=)XL|0qo(b0AlNext0PSH^!FjNE*Ap#UpR1j4J"
        "6Ej6bMfF()7ZpGNKmb$~5dZ`M1<^%C6kP=YK}=9xeH~qY*F^=?MG#R?6jwz6g-k#&UnN(2_tX`1v3-8mU+@0?X"
        "TDu~mfz(6{bXNAmxobA2vvP>Ayp7f70^L-|6L@P!2uvfG!{=4P$kp=KvWPAM^#7wKtWVcWdxH!kqJQ*07U>X0m"
        "uMB5D)-1QB_slKxKVV1yeu)*6DN$O_vBk2y|6@6sU`(AOKK708v2%5P*dQK~<bxL`)$CkO3F~QAI{TfhZ!10HT"
        "C7K?*2BiV#%<6jk9+NK_D_geaf|5JHL&qJRWI1p-Ax01*HXMG#g|b{$n!0RRM0K}Qorgb*SMC_;*mQ3R-=3MgS"
        "v5LHxE0RT`!iV&iN6#xn-LW&Sa1Q9_{7(rAJRYg@%4bebQR8<5NK><}z6c7{ul@UNh1%1#I9S~7n(oJ>$T_qoN"
        "RRl^D7HtI#X8}+^6c9vKMgas+Kvh-LRaZro1w{}L2m}RDL;yi>0HTB_p#@L^iV&iNm0$o;RX`A>00^)mC_xkuq"
        "J$`*01!bzHBSTp0031`6i{6RS4BVoK@yM@mnZ;;(xQq0qJR}Z3MfK~5D_F05fo4Y5CEcpD4+#E0*Vl#fB",
    ),
}
